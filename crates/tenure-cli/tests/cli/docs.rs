//! The manual is true: its commands and options exist, its files are read, its Rust compiles.

use std::path::{Path, PathBuf};

use tenure::config::Config;
use tenure_agent::Plan;

use crate::kit::{code, ends, stdout};

/// One block of a page that has a language.
struct Block {
    page: String,
    language: String,
    text: String,
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let manual = std::fs::read_dir(root.join("docs")).expect("the manual");
    let manual = manual.map(|entry| entry.expect("an entry").path());
    let mut pages: Vec<_> =
        manual.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    pages.push(root.join("README.md"));
    pages.sort();
    pages
}

fn blocks(languages: &[&str]) -> Vec<Block> {
    let mut found = Vec::new();
    for path in pages() {
        let page = path.file_name().expect("a file").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("text");
        let mut open: Option<Block> = None;
        for line in text.lines() {
            match (&mut open, line.strip_prefix("```")) {
                (None, Some(language)) => {
                    let language = language.split(',').next().unwrap_or_default().to_owned();
                    open = Some(Block { page: page.clone(), language, text: String::new() });
                }
                (None, None) => {}
                (Some(_), Some(_)) => found.extend(open.take()),
                (Some(block), None) => block.text.extend([line, "\n"]),
            }
        }
        assert!(open.is_none(), "{page}: a block has no end");
    }
    found.retain(|block| languages.contains(&block.language.as_str()));
    assert!(!found.is_empty());
    found
}

/// The words of every command of this program, as a shell reads them.
fn commands() -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for block in blocks(&["sh", "console"]) {
        for line in block.text.replace("\\\n", " ").lines() {
            // A prompt, and variables, come before the command.
            let mut words = line.split_whitespace().skip_while(|word| {
                *word != "tenure" && (word.ends_with('$') || word.contains('=') || *word == "|")
            });
            if words.next() != Some("tenure") {
                continue;
            }
            let ends = |word: &&str| !["#", "|", "&", ">", "&&"].contains(word);
            let words = words.take_while(ends).map(str::to_owned).collect();
            found.push((format!("{}: {line}", block.page), words));
        }
    }
    found
}

/// The options that a help text names, and whether each takes a value.
fn options(help: &str) -> Vec<(String, bool)> {
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    lines
        .filter_map(|line| {
            let at = line.find("--")?;
            let end = line[at..].find([' ', '=', ',']).map_or(line.len(), |end| at + end);
            Some((
                line[at..end].to_owned(),
                line[end..].trim_start_matches(['=', ' ']).starts_with('<'),
            ))
        })
        .collect()
}

#[tokio::test]
async fn every_command_of_the_manual_exists_with_its_options() {
    if !cfg!(all(feature = "gossip", feature = "tx")) {
        return; // With fewer features there are fewer commands.
    }
    let all = commands();
    assert!(all.len() > 30, "the manual has {} commands", all.len());
    for (place, words) in all {
        let (mut path, mut help): (Vec<&str>, _) = (Vec::new(), String::new());
        let mut rest = words.iter().map(String::as_str).peekable();
        while let Some(word) = rest.next_if(|word| !word.starts_with('-')) {
            let deeper = ends(&[&path[..], &[word, "--help"]].concat()).await;
            if code(&deeper) != 0 || stdout(&deeper) == help {
                assert!(!path.is_empty(), "{place}\nthere is no command {word}");
                break;
            }
            path.push(word);
            help = stdout(&deeper);
        }
        let known = options(&help);
        while let Some(word) = rest.next() {
            let Some(name) = word.strip_prefix("--") else {
                // What follows is another program and its own options.
                if ["run", "acquire"].contains(&path[0]) { break } else { continue }
            };
            if name.is_empty() {
                break;
            }
            let name = word.split('=').next().unwrap_or(word);
            let option = known.iter().find(|(known, _)| known == name);
            let (_, takes_value) =
                option.unwrap_or_else(|| panic!("{place}\n{path:?} has no option {name}"));
            if *takes_value && !word.contains('=') {
                rest.next();
            }
        }
    }
}

#[test]
fn every_file_of_the_manual_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    for block in blocks(&["toml"]) {
        let path = folder.path().join("tenure.toml");
        std::fs::write(&path, &block.text).expect("written");
        let read = Config::builder().file(&path).map(drop);
        read.unwrap_or_else(|error| panic!("{}: {error}\n{}", block.page, block.text));
        let read = Plan::from_toml(&block.text, &path).map(drop);
        read.unwrap_or_else(|error| panic!("{}: {error}\n{}", block.page, block.text));
    }
}

/// Each Rust block stands in `snippets.rs`, which is compiled, line for line.
#[test]
fn every_rust_snippet_of_the_manual_is_compiled() {
    let lines = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
    };
    let compiled = lines(include_str!("snippets.rs"));
    for block in blocks(&["rust"]) {
        let wanted = lines(&block.text);
        assert!(
            compiled.windows(wanted.len()).any(|part| part == wanted),
            "{}: this is not in crates/tenure-cli/tests/cli/snippets.rs:\n{}",
            block.page,
            block.text
        );
    }
}
