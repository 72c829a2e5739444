//! The words after `goodput`.
//!
//! Every option has a default that gives the whole table; `--quick` makes it one cell of a few seconds, which shows that
//! everything works and measures nothing. Numbers out of range are refused here, so that the rest need not look.
//! Cells are written as `LOSS%:RTT_MS`, for example `0.1:10,3:50`; arrangements by their names, and the first of them
//! (Linux to Linux) is always there, since the others are compared with it.

use super::{ARRANGEMENTS, Arrangement, Cell};

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) json: bool,
    pub(crate) cells: Vec<Cell>,
    /// Flows of each arrangement; `None`: as many as the cell's rate allows.
    pub(crate) flows: Option<u16>,
    pub(crate) slices: u64,
    /// Of each slice.
    pub(crate) secs: u64,
    pub(crate) seed: u64,
    /// Places in [`ARRANGEMENTS`].
    pub(crate) arrangements: Vec<usize>,
    pub(crate) save: Option<String>,
    pub(crate) report: Option<String>,
}

/// More would need more ports between two arrangements.
pub(crate) const MAX_FLOWS: u16 = 64;

impl Args {
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        let mut args = Self {
            json: false,
            cells: cells("0.1:10,1:10,3:10,0.1:50,1:50,3:50")?,
            flows: None,
            slices: 3,
            secs: 10,
            seed: 1,
            arrangements: vec![0, 1, 2],
            save: None,
            report: None,
        };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            let mut value = || words.next().copied().ok_or_else(|| format!("{word} needs a value"));
            match word {
                "--json" => args.json = true,
                "--quick" => (args.cells, args.flows, args.slices, args.secs) = (cells("1:10")?, Some(4), 1, 2),
                "--cells" => args.cells = cells(value()?)?,
                "--flows" => args.flows = Some(number(word, value()?, 1, u64::from(MAX_FLOWS))? as u16),
                "--slices" => args.slices = number(word, value()?, 1, 10_000)?,
                "--secs" => args.secs = number(word, value()?, 1, 3600)?,
                "--seed" => args.seed = number(word, value()?, 0, u64::MAX)?,
                "--arrangements" => args.arrangements = arrangements(value()?)?,
                "--save" => args.save = Some(value()?.to_owned()),
                "--report" => args.report = Some(value()?.to_owned()),
                _ => return Err(format!("goodput has no option '{word}'")),
            }
        }
        Ok(args)
    }
}

fn number(name: &str, text: &str, min: u64, max: u64) -> Result<u64, String> {
    let n = text.parse().ok().filter(|n| (min..=max).contains(n));
    n.ok_or_else(|| format!("{name} {text}: a number from {min} to {max} is wanted"))
}

fn cells(text: &str) -> Result<Vec<Cell>, String> {
    let cell = |text: &str| {
        let (loss, rtt) = text.split_once(':')?;
        let loss_percent = loss.parse().ok().filter(|loss| (0.0..=50.0).contains(loss))?;
        let rtt_ms = rtt.parse().ok().filter(|rtt| (1..=2000).contains(rtt))?;
        Some(Cell { loss_percent, rtt_ms })
    };
    let wrong = |text| format!("'{text}' is no cell: LOSS%:RTT_MS is wanted, as in 0.1:10");
    text.split(',').map(|text| cell(text).ok_or_else(|| wrong(text))).collect()
}

fn arrangements(text: &str) -> Result<Vec<usize>, String> {
    let place = |name: &str| ARRANGEMENTS.iter().position(|a: &Arrangement| a.name == name);
    let known = || ARRANGEMENTS.map(|a| a.name).join(", ");
    let mut all: Vec<usize> = text
        .split(',')
        .map(|name| place(name).ok_or_else(|| format!("'{name}' is no arrangement; there are {}", known())))
        .collect::<Result<_, _>>()?;
    all.push(0);
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_whole_table() {
        let args = Args::parse(&[]).expect("no words");
        assert_eq!((args.cells.len(), args.arrangements.as_slice()), (6, &[0, 1, 2][..]));
        assert_eq!(Args::parse(&["--quick", "--json"]).expect("two words").cells.len(), 1);
    }

    #[test]
    fn cells_and_arrangements_are_read() {
        let args =
            Args::parse(&["--cells", "0.5:7,2:2000", "--arrangements", "linux-linux-again"]).expect("good words");
        assert_eq!(args.cells[0], Cell { loss_percent: 0.5, rtt_ms: 7 });
        assert_eq!(args.arrangements, [0, 4]);
    }

    #[test]
    fn mistakes_are_named() {
        for (words, name) in [
            (&["--cells", "1"][..], "'1'"),
            (&["--cells", "99:10"], "99:10"),
            (&["--cells"], "--cells"),
            (&["--flows", "0"], "--flows"),
            (&["--secs", "x"], "--secs"),
            (&["--arrangements", "us"], "'us'"),
            (&["--fast"], "--fast"),
        ] {
            let message = Args::parse(words).expect_err("a mistake");
            assert!(message.contains(name), "{message}");
        }
    }
}
