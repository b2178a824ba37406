//! What was measured: samples, their median with its interval, the table, and `target/bench/report.json`.

use std::{fs, path::Path, time::Duration};

use serde_json::{Value, json};

/// What a ratio is to be.
#[derive(Clone, Copy)]
pub enum Aim {
    AtLeast(f64),
    AtMost(f64),
}

/// Samples of one quantity, in the order they were taken.
#[derive(Clone, Default)]
pub struct Samples(Vec<f64>);

impl From<Vec<f64>> for Samples {
    fn from(samples: Vec<f64>) -> Self {
        Self(samples)
    }
}

impl Samples {
    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            length if length % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        }
    }

    /// Where the true median is with a probability of 95 % or nearly, whatever the distribution: the number of samples
    /// below it is binomial, so that it lies between the k-th least and the k-th largest sample unless fewer than k are
    /// on one side. Of nine samples these are the second and the eighth (96.1 %), of five the outermost (93.8 %). See
    /// W. J. Conover, Practical Nonparametric Statistics, 3.2.
    pub fn interval(&self) -> (f64, f64) {
        let sorted = self.sorted();
        let count = sorted.len();
        let Some(last) = count.checked_sub(1) else {
            return (f64::NAN, f64::NAN);
        };
        // The chance that at most `below` of `count` are below the median.
        let (mut below, mut term) = (0, 0.5_f64.powi(count as i32));
        let mut outside = term;
        while below < last / 2 {
            term *= (count - below) as f64 / (below + 1) as f64;
            if outside + term > 0.025 {
                break;
            }
            outside += term;
            below += 1;
        }
        (sorted[below], sorted[last - below])
    }

    fn least(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    fn most(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    fn json(&self) -> Value {
        json!({ "median": self.median(), "min": self.least(), "max": self.most(), "samples": self.0 })
    }
}

/// One row of the table.
pub struct Figure {
    pub name: String,
    pub unit: &'static str,
    pub ours: Samples,
    pub raw: Samples,
    /// Ours by raw, pair by pair.
    pub ratio: Samples,
    pub aim: Option<Aim>,
    /// What else was seen.
    pub notes: Vec<String>,
}

impl Figure {
    /// Of pairs that were measured beside each other.
    pub fn of_pairs(name: impl Into<String>, unit: &'static str, pairs: &[(f64, f64)]) -> Self {
        let column = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).collect::<Vec<_>>().into();
        Self {
            name: name.into(),
            unit,
            ours: column(|pair| pair.0),
            raw: column(|pair| pair.1),
            ratio: column(|pair| pair.0 / pair.1),
            aim: None,
            notes: Vec::new(),
        }
    }

    /// With nothing beside it.
    pub fn alone(name: impl Into<String>, unit: &'static str, ours: Vec<f64>) -> Self {
        Self {
            ours: ours.into(),
            ..Self::of_pairs(name, unit, &[])
        }
    }

    pub fn aim(mut self, aim: Aim) -> Self {
        self.aim = Some(aim);
        self
    }

    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// What the servers do of `work` when nothing is between, where that is the other side.
    pub fn as_limit(&self, work: &str) -> String {
        let (rate, ratio) = (self.raw.median(), self.ratio.median());
        let (low, high) = self.ratio.interval();
        format!(
            "what this machine does of {work} with nothing between: {rate:.0} {}; ours by that {ratio:.2}, {low:.2}–{high:.2}",
            self.unit
        )
    }

    /// Whether the interval of the ratio includes what was aimed at, or is beyond it.
    fn is_reached(&self) -> Option<bool> {
        let (low, high) = self.ratio.interval();
        self.aim.map(|aim| match aim {
            Aim::AtLeast(aim) => high >= aim,
            Aim::AtMost(aim) => low <= aim,
        })
    }

    pub fn print(&self) {
        let number = |value: f64| match value {
            value if value.is_nan() => "–".to_owned(),
            value if value < 100.0 => format!("{value:.2}"),
            value => format!("{value:.0}"),
        };
        let ratio = self.ratio.median();
        let (low, high) = self.ratio.interval();
        let spread = match ratio.is_nan() {
            true => String::new(),
            false => format!("{low:.2}–{high:.2}"),
        };
        let aim = self.aim.map_or_else(String::new, |aim| match aim {
            Aim::AtLeast(aim) => format!("≥ {aim}"),
            Aim::AtMost(aim) => format!("≤ {aim}"),
        });
        let reached = match self.is_reached() {
            None => "",
            Some(true) => "yes",
            Some(false) => "no",
        };
        println!(
            "{:<18} {:>9} {:>9} {:>7} {:>12} {:>7} {:<4} {}",
            self.name,
            number(self.ours.median()),
            number(self.raw.median()),
            number(ratio),
            spread,
            aim,
            reached,
            self.unit,
        );
        for note in &self.notes {
            println!("    {note}");
        }
    }

    fn json(&self) -> Value {
        let (low, high) = self.ratio.interval();
        json!({
            "name": self.name,
            "unit": self.unit,
            "ours": self.ours.json(),
            "raw": self.raw.json(),
            "ratio": self.ratio.median(),
            "spread": [low, high],
            "aim": self.aim.map(|aim| match aim {
                Aim::AtLeast(aim) => json!({ "least": aim }),
                Aim::AtMost(aim) => json!({ "most": aim }),
            }),
            "reached": self.is_reached(),
            "notes": self.notes,
        })
    }
}

pub fn header() {
    println!(
        "{:<18} {:>9} {:>9} {:>7} {:>12} {:>7} {:<4} unit",
        "name", "ours", "raw", "ratio", "95 %", "aim", ""
    );
}

/// Writes all of them to `target/bench/report.json`; where that is.
pub fn write(figures: &[Figure]) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
    fs::create_dir_all(&folder).expect("a folder for the report");
    let path = folder.join("report.json");
    let figures: Vec<Value> = figures.iter().map(Figure::json).collect();
    let text = serde_json::to_string_pretty(&figures).expect("numbers and text");
    fs::write(&path, text).expect("the report");
    path.display().to_string()
}

/// The medians of what was spent on each, in microseconds a row.
pub fn micros<const OF: usize>(spent: &[[Duration; OF]], rows: usize) -> [f64; OF] {
    std::array::from_fn(|of| {
        let each = spent.iter().map(|spent| spent[of].as_secs_f64() * 1e6);
        Samples(each.map(|micros| micros / rows as f64).collect()).median()
    })
}
