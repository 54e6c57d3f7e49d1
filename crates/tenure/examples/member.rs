//! Takes part in the election of one role and prints what happens.
//!
//! `cargo run -p tenure --example member -- postgresql://localhost/app scheduler`
#![allow(clippy::print_stdout, reason = "it is a demonstration")]

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dsn = args.next().ok_or("usage: member DSN ROLE")?;
    let role = args.next().unwrap_or_else(|| "scheduler".to_owned());
    let (member, lock) = tenure::lead(&dsn, &role).await?;
    let mut events = lock.events();
    let mut changes = lock.changes();
    println!("{} takes part", member.identity());
    loop {
        tokio::select! {
            Ok(event) = events.recv() => println!("{:?}", event.notice),
            Ok(()) = changes.changed() => println!("{:?}", *changes.borrow_and_update()),
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    lock.shutdown(None).await?;
    member.shutdown(None).await?;
    Ok(())
}
