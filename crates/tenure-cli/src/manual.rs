//! `tenure key`, `tenure completions` and `tenure man`: what needs no database.

use clap::CommandFactory;
use clap_mangen::Man as Page;
use serde_json::json;
use tenure::{LockKey, RoleName};

use crate::args::{Cli, Completions, Key, Man};
use crate::exit::{Exit, Failure};
use crate::output::{out, print_json};

pub(crate) fn key(args: &Key) -> Result<Exit, Failure> {
    let name = RoleName::new(&args.name).map_err(|error| Failure::usage(error.to_string()))?;
    let sql = LockKey::sql_for_name(name.as_str());
    if args.json {
        let key = name.key().to_string();
        print_json(&json!({ "role": name.as_str(), "key": key, "sql": sql }));
    } else {
        out!("{}\n{sql};", name.key());
    }
    Ok(Exit::Clean)
}

pub(crate) fn completions(args: &Completions) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tenure", &mut script);
    out!("{}", String::from_utf8_lossy(&script).trim_end());
    Ok(Exit::Clean)
}

pub(crate) fn man(args: &Man) -> Result<Exit, Failure> {
    let command = Cli::command();
    let Some(folder) = &args.folder else {
        let mut page = Vec::new();
        Page::new(command).render(&mut page)?;
        out!("{}", String::from_utf8_lossy(&page).trim_end());
        return Ok(Exit::Clean);
    };
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .map_err(|error| {
            let place = folder.display();
            Failure::usage(format!("cannot write to {place}: {error}; choose another folder"))
        })?;
    Ok(Exit::Clean)
}
