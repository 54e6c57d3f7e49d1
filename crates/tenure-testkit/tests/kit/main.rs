//! What the kit promises, on real servers and processes.

mod child;
mod cluster;
mod orphans;
mod pgbouncer;
mod proxy;
mod replica;
mod tls;
mod versions;

use tokio_postgres::{Client, NoTls};

async fn connect(dsn: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn number(client: &Client, question: &str) -> i64 {
    client.query_one(question, &[]).await.expect("an answer").get(0)
}
