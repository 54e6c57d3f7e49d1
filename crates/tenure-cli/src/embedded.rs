//! `tenure embedded`: the private PostgreSQL of this machine.

use tenure_embedded::Embedded;

use crate::args::EmbeddedAction;
use crate::exit::{Exit, Failure};
use crate::output::out;

pub(crate) fn embedded(action: EmbeddedAction) -> Result<Exit, Failure> {
    let server = Embedded::at(None)?;
    match action {
        EmbeddedAction::Path => out!("{}", server.path().display()),
        EmbeddedAction::Stop => {
            let ran = server.status()?.is_some();
            server.stop()?;
            out!(
                "{}",
                if ran {
                    "stopped; the data stays, and a member that uses it starts it again"
                } else {
                    "it was not running"
                }
            );
        }
        EmbeddedAction::Status => match server.status()? {
            Some(instance) => {
                out!("running, pid {}", instance.pid);
                out!("dsn     {}", server.dsn()?);
                out!("folder  {}", server.path().display());
                out!("log     {}", server.log().display());
            }
            None => {
                out!("not running; the next `run` or `acquire` without a DSN starts it");
                out!("folder  {}", server.path().display());
                return Ok(Exit::Failed);
            }
        },
    }
    Ok(Exit::Clean)
}
