//! `tenure embedded`: the private PostgreSQL of this machine.

use tenure_embedded::Embedded;

use crate::args::EmbeddedAction;
use crate::exit::{Exit, Failure};
use crate::speech::say;

pub(crate) fn embedded(action: EmbeddedAction) -> Result<Exit, Failure> {
    let server = Embedded::at(None)?;
    match action {
        EmbeddedAction::Path => say!("{}", server.path().display()),
        EmbeddedAction::Stop => {
            let ran = server.status()?.is_some();
            server.stop()?;
            say!("{}", if ran { "stopped; the data stays" } else { "it was not running" });
        }
        EmbeddedAction::Status => match server.status()? {
            Some(instance) => {
                say!("running, pid {}", instance.pid);
                say!("dsn     {}", server.dsn()?);
                say!("folder  {}", server.path().display());
                say!("log     {}", server.log().display());
            }
            None => {
                say!("not running; the next command without a DSN starts it");
                say!("folder  {}", server.path().display());
                return Ok(Exit::NotLeader);
            }
        },
    }
    Ok(Exit::Clean)
}
