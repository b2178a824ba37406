//! Standard output: lines for people, or JSON, one document a line. Nobody reading on is an error, not a panic.

use std::{
    fmt::Display,
    io::{self, IsTerminal, StdoutLock, Write},
    time::Duration,
};

use anstream::AutoStream;
use clap::builder::styling::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::json;

/// Colours are taken out where there is no terminal, or it does not want them.
pub(super) struct Output {
    stream: AutoStream<StdoutLock<'static>>,
    pub(super) is_json: bool,
    /// Whether the command has more to do than to print, so that it goes on when nobody reads any more.
    goes_on: bool,
}

impl Output {
    pub(super) fn new(is_json: bool) -> Self {
        Self {
            stream: anstream::stdout().lock(),
            is_json,
            goes_on: false,
        }
    }

    /// Of a command that works or judges, whoever reads it.
    pub(super) fn to_whoever_reads(is_json: bool) -> Self {
        Self {
            goes_on: true,
            ..Self::new(is_json)
        }
    }

    pub(super) fn line(&mut self, text: impl Display) -> io::Result<()> {
        let written = writeln!(self.stream, "{text}");
        self.unread(written)
    }

    pub(super) fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string(value).map_err(io::Error::other)?;
        self.line(text)
    }

    /// What is to be said of one of many.
    pub(super) fn told(&mut self, subject: &str, what: &str) -> io::Result<()> {
        match self.is_json {
            true => self.json(&json!({ "subject": subject, "told": what })),
            false => self.line(format_args!("{subject}: {what}")),
        }
    }

    /// What is to be said besides.
    pub(super) fn note(&mut self, text: &str) -> io::Result<()> {
        match self.is_json {
            true => self.json(&json!({ "note": text })),
            false => self.line(text),
        }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        let flushed = self.stream.flush();
        self.unread(flushed)
    }

    fn unread(&self, written: io::Result<()>) -> io::Result<()> {
        match written {
            Err(error) if self.goes_on && error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }

    pub(super) fn table(
        &mut self,
        header: &[&str],
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> io::Result<()> {
        let header = header.iter().map(|&name| name.to_owned()).collect();
        let lines: Vec<Vec<String>> = [header].into_iter().chain(rows).collect();
        let width = |column| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell: &String| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..).map_while(width).collect();
        lines
            .iter()
            .try_for_each(|line| self.line(columns(line, &widths)))
    }
}

/// How often a bar is drawn while nothing happens.
const TICK: Duration = Duration::from_millis(200);

/// A bar over so many of something, drawn on a terminal only.
pub(super) fn bar(total: u64, what: &str) -> ProgressBar {
    let style = format!("{{spinner}} {{pos}} of {{len}} {what}, {{per_sec}}, {{elapsed}} {{msg}}");
    let style = ProgressStyle::with_template(&style);
    let bar = ProgressBar::new(total);
    let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(TICK);
    bar
}

/// Cells side by side, each at least as wide as its column.
pub(super) fn columns(cells: &[String], widths: &[usize]) -> String {
    let cells = cells.iter().zip(widths);
    let cells: Vec<String> = cells
        .map(|(cell, &width)| format!("{cell:<width$}"))
        .collect();
    cells.join("  ").trim_end().to_owned()
}

pub(super) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Text in a colour that means something.
pub(super) fn coloured(colour: AnsiColor, text: &str) -> String {
    let style = Style::new().fg_color(Some(colour.into()));
    format!("{style}{text}{style:#}")
}

/// A span of time as people say it, in two units at most.
pub(super) fn span(millis: i64) -> String {
    let seconds = millis / 1000;
    match seconds.abs() {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, (seconds % 60).abs()),
        3600..86_400 => format!("{}h {}m", seconds / 3600, (seconds / 60 % 60).abs()),
        _ => format!("{}d {}h", seconds / 86_400, (seconds / 3600 % 24).abs()),
    }
}

/// Milliseconds since the epoch as text; a number where they are beyond every calendar.
pub(super) fn time(millis: i64) -> String {
    let date = bson::DateTime::from_millis(millis);
    date.try_to_rfc3339_string()
        .unwrap_or_else(|_| millis.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_under_each_other() {
        let cells = ["ü", "5", ""].map(str::to_owned);
        assert_eq!(columns(&cells, &[3, 2, 4]), "ü    5");
        assert_eq!(columns(&cells, &[0, 0, 0]), "ü  5");
    }

    #[test]
    fn spans_have_two_units() {
        assert_eq!(span(999), "0s");
        assert_eq!(span(61_000), "1m 1s");
        assert_eq!(span(7_260_000), "2h 1m");
        assert_eq!(span(90_000_000), "1d 1h");
    }
}
