//! `tenure embedded`: the private PostgreSQL of this machine.

use tenure_embedded::Embedded;

use crate::args::EmbeddedAction;
use crate::exit::{Exit, Failure};

pub(crate) fn embedded(action: EmbeddedAction) -> Result<Exit, Failure> {
    let server = Embedded::at(None)?;
    match action {
        EmbeddedAction::Path => println!("{}", server.path().display()),
        EmbeddedAction::Stop => {
            let ran = server.status()?.is_some();
            server.stop()?;
            println!("{}", if ran { "stopped; the data stays" } else { "it was not running" });
        }
        EmbeddedAction::Status => match server.status()? {
            Some(instance) => {
                println!("running, pid {}", instance.pid);
                println!("dsn     {}", server.dsn()?);
                println!("folder  {}", server.path().display());
                println!("log     {}", server.log().display());
            }
            None => {
                println!("not running; the next command without a DSN starts it");
                println!("folder  {}", server.path().display());
                return Ok(Exit::NotLeader);
            }
        },
    }
    Ok(Exit::Clean)
}
