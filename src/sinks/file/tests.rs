use std::fs;

use bson::doc;
use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::sinks::samples::{message, message_of};

fn numbered(numbers: std::ops::Range<usize>) -> Vec<Message> {
    numbers
        .map(|number| message(&number.to_string(), "{}"))
        .collect()
}

fn path(dir: &TempDir) -> PathBuf {
    dir.path().join("events.jsonl")
}

/// The rows of a file, each line of which is JSON.
fn rows(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
    let row = |line| {
        serde_json::from_str::<Value>(line).unwrap()["row"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    text.lines().map(row).collect()
}

async fn append(sink: &JsonLines, batch: &[Message]) {
    let verdicts = sink.deliver(batch).await.unwrap();
    assert_eq!(verdicts, vec![Verdict::Accepted; batch.len()]);
}

#[tokio::test]
async fn a_message_is_a_line_of_json() {
    let dir = TempDir::new().unwrap();
    let sink = JsonLines::open(path(&dir)).await.unwrap();
    let state = crate::Encoding::Json
        .encode(&doc! { "_id": 7, "says": "two\nlines" }.into())
        .unwrap();
    let plain = message_of("one", &state, "application/json");
    let packed = message_of("two", &[0xff, 0x00], "application/msgpack");
    append(&sink, &[plain, packed]).await;
    let text = fs::read_to_string(path(&dir)).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            r#"{"row":"one","label":"created","component":"tea.pots","time":"2026-01-02T03:04:05Z","entity":7,"body":{"_id":7,"says":"two\nlines"}}"#,
            r#"{"row":"two","label":"created","component":"tea.pots","time":"2026-01-02T03:04:05Z","entity":7,"body":"/wA="}"#,
        ]
    );
}

#[tokio::test]
async fn wherever_a_crash_cut_it_there_are_whole_lines_only() {
    let dir = TempDir::new().unwrap();
    let sink = JsonLines::open(path(&dir)).await.unwrap();
    append(&sink, &numbered(0..3)).await;
    drop(sink);
    let whole = fs::read(path(&dir)).unwrap();
    for length in 0..=whole.len() {
        fs::write(path(&dir), &whole[..length]).unwrap();
        let sink = JsonLines::open(path(&dir)).await.unwrap();
        append(&sink, &numbered(3..4)).await;
        let kept = whole[..length]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count();
        let mut expected: Vec<String> = (0..kept).map(|number| number.to_string()).collect();
        expected.push("3".into());
        assert_eq!(rows(&path(&dir)), expected, "cut at {length}");
    }
}

#[tokio::test]
async fn a_piece_that_is_longer_than_what_is_read_at_once_is_cut_off() {
    let dir = TempDir::new().unwrap();
    let piece = vec![b'x'; 3 * CHUNK as usize + 1];
    fs::write(
        path(&dir),
        [b"{\"row\":\"0\"}\n".as_slice(), &piece].concat(),
    )
    .unwrap();
    let sink = JsonLines::open(path(&dir)).await.unwrap();
    append(&sink, &numbered(1..2)).await;
    assert_eq!(rows(&path(&dir)), ["0", "1"]);
}

#[tokio::test(start_paused = true)]
async fn one_that_another_has_is_refused_by_name_after_a_while() {
    let dir = TempDir::new().unwrap();
    let first = JsonLines::open(path(&dir)).await.unwrap();
    let began = Instant::now();
    let refusal = JsonLines::open(path(&dir)).await.err().unwrap().to_string();
    assert!(began.elapsed() >= PATIENCE);
    assert!(
        refusal.contains("events.jsonl") && refusal.contains("another process has it"),
        "{refusal}"
    );
    drop(first);
    assert!(JsonLines::open(path(&dir)).await.is_ok());
}

#[tokio::test]
async fn a_full_file_makes_place_for_another_and_the_oldest_goes() {
    let dir = TempDir::new().unwrap();
    let sink = JsonLines::open(path(&dir)).await.unwrap().rotated(300, 2);
    for number in 0..8 {
        append(&sink, &numbered(number..number + 1)).await;
    }
    let file = |suffix: &str| rows(&beside(&path(&dir), suffix));
    // Two lines fit in 300 bytes.
    assert_eq!(rows(&path(&dir)), ["6", "7"]);
    assert_eq!(
        (file("1"), file("2")),
        (vec!["4".into(), "5".into()], vec!["2".into(), "3".into()])
    );
    assert!(!beside(&path(&dir), "3").exists());
    drop(sink);
    let sink = JsonLines::open(path(&dir)).await.unwrap().rotated(300, 2);
    append(&sink, &numbered(8..9)).await;
    assert_eq!(file("1"), ["6", "7"], "how long it is was not forgotten");
}

/// As where it was renamed, and there was no place for a new one.
#[tokio::test]
async fn a_full_file_that_someone_took_away_makes_place_and_the_old_ones_stay() {
    let dir = TempDir::new().unwrap();
    let sink = JsonLines::open(path(&dir)).await.unwrap().rotated(300, 2);
    for number in 0..4 {
        append(&sink, &numbered(number..number + 1)).await;
    }
    fs::remove_file(path(&dir)).unwrap();
    append(&sink, &numbered(4..5)).await;
    assert_eq!(rows(&path(&dir)), ["4"]);
    assert_eq!(rows(&beside(&path(&dir), "1")), ["0", "1"]);
    assert!(!beside(&path(&dir), "2").exists());
}

#[tokio::test]
async fn a_piece_that_cannot_be_cut_off_at_once_is_before_anything_else_is_written() {
    let dir = TempDir::new().unwrap();
    let sink = JsonLines::open(path(&dir)).await.unwrap();
    append(&sink, &numbered(0..1)).await;
    let sick = File::open(path(&dir)).unwrap();
    let well = std::mem::replace(&mut locked(&sink.appending).file, sick);
    assert!(sink.deliver(&numbered(1..2)).await.is_err());
    (&well).write_all(b"{\"row\":").unwrap();
    assert!(sink.deliver(&numbered(1..2)).await.is_err());
    locked(&sink.appending).file = well;
    append(&sink, &numbered(1..2)).await;
    assert_eq!(rows(&path(&dir)), ["0", "1"]);
}

#[tokio::test]
async fn a_disk_that_is_full_takes_nothing() {
    let dir = TempDir::new().unwrap();
    std::os::unix::fs::symlink("/dev/full", path(&dir)).unwrap();
    let sink = JsonLines::open(path(&dir)).await.unwrap();
    let refusal = sink.deliver(&numbered(0..1)).await.unwrap_err();
    assert!(refusal.to_string().contains("No space left"), "{refusal}");
}

#[tokio::test]
async fn a_directory_that_is_not_there_is_told() {
    let dir = TempDir::new().unwrap();
    let refusal = JsonLines::open(dir.path().join("none/events.jsonl"))
        .await
        .err()
        .unwrap();
    assert!(
        refusal.to_string().contains("none/events.jsonl"),
        "{refusal}"
    );
}
