//! Where environment variables come from.

use std::collections::HashMap;

/// A source of environment variables.
///
/// The process's own is [`ProcessEnv`]; a test hands in a closure or a map, so that no test ever
/// touches the global environment.
pub trait Env {
    /// The value of `name`; an empty value counts as unset, as it does for libpq.
    fn var(&self, name: &str) -> Option<String>;

    /// Whether `name` is set to nothing but white space, which hints at a secret that is missing.
    fn is_blank(&self, name: &str) -> bool;
}

/// The environment of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessEnv;

impl Env for ProcessEnv {
    fn var(&self, name: &str) -> Option<String> {
        std::env::var(name).ok().filter(|value| !value.is_empty())
    }

    fn is_blank(&self, name: &str) -> bool {
        std::env::var(name).is_ok_and(|value| value.trim().is_empty())
    }
}

/// An environment without any variable.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoEnv;

impl Env for NoEnv {
    fn var(&self, _name: &str) -> Option<String> {
        None
    }

    fn is_blank(&self, _name: &str) -> bool {
        false
    }
}

impl<F: Fn(&str) -> Option<String>> Env for F {
    fn var(&self, name: &str) -> Option<String> {
        self(name).filter(|value| !value.is_empty())
    }

    fn is_blank(&self, name: &str) -> bool {
        self(name).is_some_and(|value| value.trim().is_empty())
    }
}

impl Env for HashMap<String, String> {
    fn var(&self, name: &str) -> Option<String> {
        self.get(name).filter(|value| !value.is_empty()).cloned()
    }

    fn is_blank(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.trim().is_empty())
    }
}

/// A variable that is neither a yes nor a no.
#[derive(Debug)]
pub struct NotASwitch;

/// Reads a yes (`1`, `true`, `yes`, `on`) or a no (`0`, `false`, `no`, `off`), in any case; `None` if the
/// variable is not set.
///
/// # Errors
/// [`NotASwitch`] for anything else: a typing error must not pass for "no".
pub fn switch(env: &dyn Env, variable: &str) -> Result<Option<bool>, NotASwitch> {
    let Some(text) = env.var(variable) else { return Ok(None) };
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(Some(true)),
        "0" | "false" | "no" | "off" => Ok(Some(false)),
        _ => Err(NotASwitch),
    }
}
