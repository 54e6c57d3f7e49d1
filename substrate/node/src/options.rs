//! What the command line says.

/// How the node runs.
pub(crate) struct Options {
    /// The runtime's file, as it is or compressed.
    pub(crate) runtime: String,
    /// The runtime's preset for the first block.
    pub(crate) preset: String,
    /// The port on 127.0.0.1; 0 takes a free one.
    pub(crate) port: u16,
    /// Milliseconds between blocks; 0: only by `engine_createBlock`.
    pub(crate) block_ms: u64,
    /// How many blocks finality stays behind the best; none: only by `engine_finalizeBlock`.
    pub(crate) finality_lag: Option<u32>,
    /// The old pool, instead of the one that follows forks.
    pub(crate) single_state: bool,
    /// How many ready transactions the pool holds.
    pub(crate) pool_limit: usize,
    /// How long a removed transaction is banned; a production node says 1,800.
    pub(crate) ban_seconds: u64,
    /// How many subscriptions one connection may have.
    pub(crate) subscriptions: u32,
    /// How many final blocks keep their state; none: all.
    pub(crate) states: Option<u32>,
    /// A folder that survives a restart; none: memory.
    pub(crate) folder: Option<String>,
}

impl Options {
    /// Reads them; a word that is not known ends the program.
    pub(crate) fn read() -> Result<Options, String> {
        let mut options = Options {
            runtime: String::new(),
            preset: "development".to_owned(),
            port: 0,
            block_ms: 0,
            finality_lag: Some(2),
            single_state: false,
            pool_limit: 8192,
            ban_seconds: 0,
            subscriptions: 4096,
            states: None,
            folder: None,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{word} {value}: a number"));
            let small = || value.parse::<u32>().map_err(|_| format!("{word} {value}: a number"));
            match word.as_str() {
                "--runtime" => options.runtime = value,
                "--preset" => options.preset = value,
                "--port" => options.port = u16::try_from(number()?).map_err(|_| "not a port")?,
                "--block-ms" => options.block_ms = number()?,
                "--finality-lag" if value == "none" => options.finality_lag = None,
                "--finality-lag" => options.finality_lag = Some(small()?),
                "--pool" if value == "single-state" => options.single_state = true,
                "--pool" if value == "fork-aware" => options.single_state = false,
                "--pool-limit" => options.pool_limit = small()? as usize,
                "--ban-seconds" => options.ban_seconds = number()?,
                "--subscriptions" => options.subscriptions = small()?,
                "--states" => options.states = Some(small()?),
                "--folder" => options.folder = Some(value),
                _ => return Err(format!("there is no option {word} {value}")),
            }
        }
        if options.runtime.is_empty() {
            return Err("name the runtime's file: --runtime FILE".to_owned());
        }
        Ok(options)
    }
}
