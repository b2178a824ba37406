//! What is wrong with settings, which nobody needs a server to find out.

use std::{
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

/// What somebody gives the program.
#[derive(Default)]
struct Given {
    file: String,
    env: Vec<(String, String)>,
    args: Vec<String>,
}

#[test]
fn wrong_variables() {
    let variable = |text: &str| {
        let (name, value) = text.split_once('=').unwrap();
        Given {
            env: vec![(name.to_owned(), value.to_owned())],
            ..Given::default()
        }
    };
    judge(
        variable,
        r#"
TOA_OUTBOX_INTERVALL=hunter2 => TOA_OUTBOX_INTERVALL | did you mean TOA_OUTBOX_INTERVAL?
TOA_OUTBOX_MONGO=mongodb://me:hunter2@db => TOA_OUTBOX_MONGO | did you mean TOA_OUTBOX_MONGODB?
TOA_OUTBOX_XYZZY_PLUGH=1 => no such setting; there are TOA_OUTBOX_MONGODB
TOA_OUTBOX_INTERVAL=5s => TOA_OUTBOX_INTERVAL (environment): "5s" | whole number from 10 to 3600000
TOA_OUTBOX_INTERVAL=9 => "9" | from 10 to 3600000
TOA_OUTBOX_INTERVAL=mongodb://me:hunter2@db => TOA_OUTBOX_INTERVAL | whole number
TOA_OUTBOX_BATCH=0 => TOA_OUTBOX_BATCH | from 1 to 10000
TOA_OUTBOX_RETENTION=-1 => TOA_OUTBOX_RETENTION | from 0 to 2147483647
TOA_OUTBOX_INFLIGHT=1e3 => TOA_OUTBOX_INFLIGHT | from 1 to 100000
TOA_OUTBOX_DEFER=yes => TOA_OUTBOX_DEFER | expected 0 or 1
TOA_OUTBOX_ENSURE= => TOA_OUTBOX_ENSURE | expected 0 or 1
TOA_OUTBOX_CEILING=64MB => TOA_OUTBOX_CEILING (environment): "64MB" | such as 100000 | 64MiB
TOA_OUTBOX_SLOT=3/3 => TOA_OUTBOX_SLOT | such as 0/2
TOA_ATOMICITY_INTERVAL=2s => TOA_ATOMICITY_INTERVAL | from 10 to 60000
TOA_OUTBOX_DATABASE= => TOA_OUTBOX_DATABASE | leave it out
TOA_OUTBOX_MONGODB= => TOA_OUTBOX_MONGODB | leave it out
TOA_OUTBOX_MONGODB=http://me:hunter2@db => TOA_OUTBOX_MONGODB (environment) | connection string such as
TOA_OUTBOX_MONGODB=mongodb://me:hun ter2/hunter2@db => percent-encoded
TOA_OUTBOX_MONGODB=mongodb://me:hunter2@db/?w=majority&tls=maybe => TOA_OUTBOX_MONGODB | connection string
TOA_OUTBOX_AMQP=me:hunter2@mq => TOA_OUTBOX_AMQP (environment) | neither amqp nor amqps
TOA_OUTBOX_AMQP=amqp://a http://me:hunter2@b => URI 2 of 2 | neither amqp nor amqps
TOA_OUTBOX_AMQP=amqp://me:hunter2@mq:port => URI 1 of 1 | percent-encode
TOA_OUTBOX_LISTEN=everywhere => TOA_OUTBOX_LISTEN | 127.0.0.1:9090
TOA_OUTBOX_LISTEN=127.0.0.1:99999 => TOA_OUTBOX_LISTEN | an address and a port
TOA_OUTBOX_LOG=yaml => TOA_OUTBOX_LOG | text or json
TOA_OUTBOX_LOG_LEVEL=verbose => TOA_OUTBOX_LOG_LEVEL | warn,toa_outbox=debug
TOA_OUTBOX_CONFIG=nowhere.toml => TOA_OUTBOX_CONFIG (environment): "nowhere.toml" | cannot be read | check its path
TOA_OUTBOX_CONFIG=folder => TOA_OUTBOX_CONFIG | cannot be read
TOA_OUTBOX_MONGODB_FILE=nowhere => TOA_OUTBOX_MONGODB_FILE | "nowhere" | cannot be read
TOA_OUTBOX_MONGODB_FILE=empty => TOA_OUTBOX_MONGODB_FILE | the file is empty
TOA_OUTBOX_MONGODB_FILE=secret => TOA_OUTBOX_MONGODB_FILE | from secret | connection string such as
TOA_OUTBOX_AMQP_FILE=folder => TOA_OUTBOX_AMQP_FILE | cannot be read
TOA_OUTBOX_AMQP_FILE=secret => TOA_OUTBOX_AMQP_FILE | from secret | neither amqp nor amqps
"#,
    );
}

#[test]
fn wrong_flags() {
    let flags = |text: &str| Given {
        args: text.split(' ').map(str::to_owned).collect(),
        ..Given::default()
    };
    judge(
        flags,
        r#"
--interval 5s => --interval (command line): "5s" | whole number
--intervall 5 => --intervall | --interval
--slot half => --slot | such as 0/2
--defer=maybe => --defer | 0 or 1
--listen ::1 => --listen | [::]:9090
--log-level infoo => --log-level | info
--config nowhere.toml => --config (command line) | cannot be read
--mongodb mongodb://me:hunter2@db --mongodb-file secret => --mongodb-file | --mongodb is set as well | keep one
mongodb://me:hunter2@db => unexpected argument | …@db | --help
--mongodb => --mongodb | value is required
--amqp amqps://me:hunter2@ => --amqp (command line)
"#,
    );
}

#[test]
fn wrong_files() {
    let file = |text: &str| Given {
        file: text.replace(r"\n", "\n"),
        ..Given::default()
    };
    judge(
        file,
        r#"
interval = => toa-outbox.toml line 1 | not TOML
batch = 1\nmongodb = mongodb://me:hunter2@db => toa-outbox.toml line 2 | not TOML
mongodb = "mongodb://me:hunter2@db => toa-outbox.toml line 1 | not TOML
batch = 1\nbatch = 2 => toa-outbox.toml line 2 | duplicate key
\nintervall = 5 => intervall (toa-outbox.toml line 2) | did you mean interval?
components = 5 => components | did you mean component?
config = "x" => config | no such setting
password = "hunter2" => password | no such setting
interval = "5000" => interval (toa-outbox.toml line 1): "a text" | whole number, without quotes
interval = 1.5 => "a fraction" | whole number
interval = -5 => interval | from 10 to 3600000
defer = 1 => defer | true or false
ceiling = true => ceiling | "64MiB"
ceiling = "64MB" => ceiling (toa-outbox.toml line 1): "64MB" | KiB, MiB or GiB
mongodb = 5 => mongodb | a text in quotes
mongodb = "mongodb://me:hunter2@" => mongodb (toa-outbox.toml line 1) | connection string
amqp = [5] => amqp | a list of texts
listen = true => listen | or a port
[component]\nname = "pots" => component | under [[component]]
[[component]]\nname = "pots" => component ?.pots, namespace (toa-outbox.toml line 1) | must not be missing
amqp = "amqp://me:hunter2@mq"\namqp_file = "secret" => amqp_file (toa-outbox.toml line 2) | amqp is set as well
"#,
    );
}

const POTS: &str = "[[component]]\nnamespace = \"tea\"\nname = \"pots\"\n";

#[test]
fn wrong_components() {
    let component = |text: &str| Given {
        file: POTS.to_owned() + &text.replace(r"\n", "\n"),
        ..Given::default()
    };
    judge(
        component,
        r#"
encodng = "json" => component tea.pots, encodng (toa-outbox.toml line 4) | did you mean encoding?
encoding = "jsn" => component tea.pots, encoding | "jsn" | did you mean json?
encoding = 1 => encoding | a text in quotes
mandatory = "no" => mandatory | true or false
integrity = 1 => integrity | true or false
headers = { tenant = 1 } => headers | a table of texts
labels = "created" => labels | a list of texts
labels = ["create"] => labels | did you mean created? | [[component.label]]
labels = ["created", "created"] => component tea.pots | "created" is declared twice | toa-outbox.toml line 3
exchange = "{namespace}.{lable}" => component tea.pots | exchange | {label}
outbox = "tea_pots" => different collections
collection = "a$b" => "a$b" cannot be a collection
[[component]]\nnamespace = "tea"\nname = "pots" => component tea.pots | declared twice | line 6
[[component]]\nnamespace = "tea"\nname = "cups"\noutbox = "tea_pots_outbox" => component tea.cups | its own outbox
label = 1 => label | under [[component.label]]
[[component.label]]\nwhen = "true" => component tea.pots, name (toa-outbox.toml line 4) | must not be missing
[[component.label]]\nname = "created" => "created" is declared twice
[[component.label]]\nname = "too hot" => "too hot" must be a word
"#,
    );
}

#[test]
fn wrong_labels() {
    let label = |text: &str| Given {
        file: format!("{POTS}[[component.label]]\nname = \"boiled\"\n{text}"),
        ..Given::default()
    };
    judge(
        label,
        r#"
wen = "true" => component tea.pots, label boiled, wen (toa-outbox.toml line 6) | did you mean when?
when = true => label boiled, when | a text in quotes
when = "state.temperature >" => component tea.pots, label boiled, when (toa-outbox.toml line 6): "state.temperature >"
when = "state.temperature >" => expected a CEL expression; line 1, column
when = "sate.temperature > 1" => label boiled, when | no variable sate; there are origin, state, trailers, input
when = "length(state) > 1" => label boiled, when | no function length
when = "1 + 1" => label boiled, when | expected true or false
payload = "{'t': state.temperature" => label boiled, payload | CEL expression
payload = "" => label boiled, payload | CEL expression
"#,
    );
    let deep = format!("when = \"{}true{}\"", "(".repeat(3000), ")".repeat(3000));
    judge(label, &format!("{deep} => label boiled, when"));
}

#[test]
fn wrong_sinks() {
    let sink = |text: &str| Given {
        file: format!("[[sink]]\nlabels = [\"*\"]\n{}", text.replace(r"\n", "\n")),
        ..Given::default()
    };
    judge(
        sink,
        r#"
kind = "http" => name (toa-outbox.toml line 1) | must not be missing
name = "a/b"\nkind = "stdout" => sink a/b, name (toa-outbox.toml line 3): "a/b" | letters, digits
name = "amqp"\nkind = "stdout" => sink amqp, name | the broker's
name = "hook" => sink hook, kind | expected one of http, file, stdout
name = "hook"\nkind = "htp" => sink hook, kind (toa-outbox.toml line 4): "htp" | did you mean http?
name = "log"\nkind = "file" => sink log, path | must not be missing
name = "log"\nkind = "file"\npath = "x"\nurl = "http://x" => sink log, url (toa-outbox.toml line 6) | no such setting
name = "log"\nkind = "file"\npath = "x"\nrotate = 0 => sink log, rotate | at least 1
name = "log"\nkind = "stdout"\npolicy = "webhok" => sink log, policy | did you mean webhook?
name = "log"\nkind = "stdout"\nstart = "then" => sink log, start | "then"
name = "log"\nkind = "stdout"\norder = "orderd" => sink log, order (toa-outbox.toml line 5): "orderd" | did you mean ordered?
name = "log"\nkind = "stdout"\norder = true => sink log, order | a text in quotes
name = "log"\nkind = "stdout"\nstart = "origin" => sink log, start (toa-outbox.toml line 5): "origin" | expected backlog
name = "log"\nkind = "stdout"\norder = "ordered"\nstart = "backlog" => sink log, start (toa-outbox.toml line 6): "backlog" | expected origin
name = "log"\nkind = "stdout"\norder = "audit"\nstart = "backlog" => sink log, start | expected origin
name = "log"\nkind = "stdout"\norder = "audit"\nstart = "then" => sink log, start | "then"
name = "log"\nkind = "stdout"\norder = "audit"\npolicy = "webhook" => sink log, policy (toa-outbox.toml line 6): "webhook" | expected flat | ever given up
name = "log"\nkind = "stdout"\norder = "audit"\npolicy = "flatt" => sink log, policy | did you mean flat?
name = "log"\nkind = "stdout"\norder = "audit"\nattempts = 3 => sink log, attempts (toa-outbox.toml line 6): "3" | ever given up
name = "log"\nkind = "stdout"\norder = "audit"\nattempts = 0 => sink log, attempts | at least 1
name = "log"\nkind = "stdout"\norder = "ordered"\nsafety = 1 => sink log, safety | true or false
name = "log"\nkind = "stdout"\nattempts = 0 => sink log, attempts (toa-outbox.toml line 5): "0" | at least 1
name = "log"\nkind = "stdout"\nattempts = -2 => sink log, attempts | "-2" | at least 1
name = "log"\nkind = "stdout"\npolicy = "flat"\nattempts = 3 => sink log, attempts (toa-outbox.toml line 6): "3" | nothing up
name = "log"\nkind = "stdout"\nsafety = 1 => sink log, safety | true or false
name = "log"\nkind = "stdout"\nbatch_bytes = 5 => sink log, safety | all of
name = "log"\nkind = "stdout"\nbatch_bytes = 5\nwindow_requests = 1\nwindow_bytes = 4 => sink log, | batch
name = "log"\nkind = "stdout"\n[[sink]]\nname = "log"\nkind = "stdout"\nlabels = ["*"] => sink log, name (toa-outbox.toml line 6) | another of that name
name = "hook"\nkind = "http"\nsecret = "hunter2" => sink hook, url | must not be missing
name = "hook"\nkind = "http"\nurl = "http://x/hunter2" => sink hook, secret | signed
name = "hook"\nkind = "http"\nurl = "ftp://x/hunter2"\nsecret = "hunter2 and more" => sink hook, url (toa-outbox.toml line 5)
name = "hook"\nkind = "http"\nurl = "http://x"\nsecret_file = "nowhere" => sink hook, secret_file (toa-outbox.toml line 6) | cannot be read
name = "hook"\nkind = "http"\nurl = "http://x"\nsecret = "hunter2 and more"\ntimeout = 20000 => sink hook, timeout | at most 10s
"#,
    );
}

#[test]
fn layers_that_contradict_each_other() {
    let both = |_: &str| Given {
        env: vec![
            (
                "TOA_OUTBOX_MONGODB".into(),
                "mongodb://me:hunter2@db".into(),
            ),
            ("TOA_OUTBOX_MONGODB_FILE".into(), "secret".into()),
        ],
        ..Given::default()
    };
    judge(
        both,
        "=> TOA_OUTBOX_MONGODB_FILE | TOA_OUTBOX_MONGODB is set as well",
    );
    let strange = |_: &str| Given {
        file: POTS.into(),
        env: vec![("TOA_EVENTS_TEA_POTS".into(), "created boild".into())],
        ..Given::default()
    };
    judge(
        strange,
        "=> component tea.pots | TOA_EVENTS_TEA_POTS lists \"boild\" | declared are",
    );
    // What is overridden has to be right all the same.
    let overridden = |_: &str| Given {
        file: "interval = 1".into(),
        args: vec!["--interval".into(), "100".into()],
        ..Given::default()
    };
    judge(overridden, "=> interval (toa-outbox.toml line 1): \"1\"");
}

/// A file that uses all there is, and the layers over it.
#[test]
fn what_holds_is_shown_with_its_origin_and_without_passwords() {
    let directory = TempDir::new().unwrap();
    let mut given = Given {
        file: ALL.into(),
        env: vec![
            ("TOA_OUTBOX_BATCH".into(), "60".into()),
            ("TOA_OUTBOX_INFLIGHT".into(), "7".into()),
        ],
        args: ["--json", "--inflight", "8"].map(str::to_owned).into(),
    };
    let text = String::from_utf8(config(directory.path(), &given).stdout).unwrap();
    assert!(!text.contains("hunter2"), "{text}");
    let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
    for row in SHOWN.trim().lines() {
        let [name, value, origin] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let setting = &shown["settings"][name];
        assert_eq!(setting["value"].to_string(), value, "{name}");
        assert_eq!(setting["origin"], origin, "{name}");
    }
    for (row, sink) in SINKS.trim().lines().zip(shown["sinks"].as_array().unwrap()) {
        let shown = [&sink["to"], &sink["order"], &sink["start"], &sink["policy"]];
        let shown = shown.map(ToString::to_string).join(" | ");
        assert_eq!(format!("{} | {shown}", sink["name"].as_str().unwrap()), row);
    }
    let pots = &shown["components"][0];
    assert_eq!(pots["outbox"], "tea_pots_outbox");
    assert_eq!(pots["encoding"], "msgpack");
    assert_eq!(pots["labels"].to_string(), r#"["created","sync","boiled"]"#);

    let boiled = &pots["when"]["boiled"];
    assert!(boiled.as_str().unwrap().contains(">= 100"), "{pots}");
    assert_eq!(pots["origin"], "toa-outbox.toml line 11");
    let consumed = ("TOA_EVENTS_TEA_POTS".into(), "created boiled".into());
    given.env.push(consumed);
    given.args.clear();
    let text = String::from_utf8(config(directory.path(), &given).stdout).unwrap();
    assert!(
        text.contains("tea.pots") && text.contains("toa-outbox.toml line 4"),
        "{text}"
    );
    for part in [
        "created boiled ",
        "environment: TOA_EVENTS_TEA_POTS",
        "boiled: origin != null",
        "boiled: {'id': state._id",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn secrets_come_from_files_and_layers_lie_over_each_other() {
    let directory = TempDir::new().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("uri", "mongodb://me:hunter2@mounted/tea\n");
    write(
        "mine.toml",
        "batch = 1\nmongodb = \"mongodb://me:hunter2@mine\"",
    );
    write("theirs.toml", "batch = 2");
    let given = Given {
        file: "batch = 3".into(),
        env: vec![
            ("TOA_OUTBOX_MONGODB_FILE".into(), "uri".into()),
            ("TOA_OUTBOX_CONFIG".into(), "theirs.toml".into()),
        ],
        args: ["--json", "--config", "mine.toml"]
            .map(str::to_owned)
            .into(),
    };
    let text = String::from_utf8(config(directory.path(), &given).stdout).unwrap();
    let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
    let settings = &shown["settings"];
    assert_eq!(settings["mongodb"]["value"], "mongodb://…@mounted/tea");
    assert_eq!(
        settings["mongodb"]["origin"],
        "environment, from uri: TOA_OUTBOX_MONGODB_FILE"
    );
    assert_eq!(settings["batch"]["value"], 1);
    assert_eq!(settings["config"]["origin"], "command line: --config");
}

const ALL: &str = r#"
mongodb = "mongodb://me:hunter2@db,db2:2/tea?replicaSet=rs0"
amqp = ["amqp://me:hunter2@a", "amqp://b/v"]
interval = 1_000
batch = 50
defer = true
listen = 9090

[[component]]
namespace = "tea"
name = "pots"
encoding = "msgpack"
exchange = "{label}.of.{name}"
mandatory = true
headers = { tenant = "t1" }
labels = ["created", "sync"]
[[component.label]]
name = "boiled"
when = "origin != null && state.temperature >= 100 && origin.temperature < 100"
payload = "{'id': state._id, 't': state.temperature}"

[[sink]]
name = "log"
kind = "stdout"
labels = ["*"]
[[sink]]
name = "hook"
kind = "http"
labels = ["tea_pots.*"]
url = "http://a/hunter2"
secret = "hunter2 and more"
policy = "webhook"
[[sink]]
name = "warehouse"
kind = "stdout"
labels = ["*"]
order = "ordered"
policy = "webhook"
[[sink]]
name = "record"
kind = "stdout"
labels = ["*"]
order = "audit"
start = "now"
"#;

const SINKS: &str = r#"
log | "standard output" | "lanes" | "backlog" | "backoff"
hook | "http://a" | "lanes" | "now" | "webhook"
warehouse | "standard output" | "ordered" | "origin" | "webhook"
record | "standard output" | "audit" | "now" | "flat"
"#;

const SHOWN: &str = r#"
mongodb | "mongodb://…@db,db2:2/tea?replicaSet=rs0" | toa-outbox.toml line 2: mongodb
amqp | ["amqp://…@a","amqp://b/v"] | toa-outbox.toml line 3: amqp
interval | 1000 | toa-outbox.toml line 4: interval
batch | 60 | environment: TOA_OUTBOX_BATCH
inflight | 8 | command line: --inflight
defer | true | toa-outbox.toml line 6: defer
listen | "127.0.0.1:9090" | toa-outbox.toml line 7: listen
retention | 86400 | default
slot | null | default
log_level | "info" | default
config | "toa-outbox.toml" | default
"#;

/// Tries every row of a table, and tells of all that are not as they should be.
fn judge(given: impl Fn(&str) -> Given, table: &str) {
    let problem = |row: &str| {
        let (left, says) = row.split_once("=> ").unwrap();
        let problem = fault(&given(left.trim_end_matches(' ')), says)?;
        Some(format!("{row}\n  {problem}"))
    };
    let problems: Vec<String> = table.trim().lines().filter_map(problem).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// What is wrong with the answer, if anything.
fn fault(given: &Given, says: &str) -> Option<String> {
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("secret"), "mongodb://me:hunter2@/").unwrap();
    std::fs::write(directory.path().join("empty"), "\n").unwrap();
    std::fs::create_dir(directory.path().join("folder")).unwrap();
    let output = config(directory.path(), given);
    let line = String::from_utf8_lossy(&output.stderr);
    let shown = line.to_string() + &String::from_utf8_lossy(&output.stdout);
    let missing = says.split(" | ").find(|part| !line.contains(part));
    let problem = if shown.contains("hunter2") {
        "the password is shown".to_owned()
    } else if shown.contains("panicked") {
        "it panicked".to_owned()
    } else if output.status.code() != Some(2) {
        format!("{}", output.status)
    } else if line.trim_end().lines().count() != 1 {
        "not one line".to_owned()
    } else {
        format!("{:?} is not said", missing?)
    };
    Some(format!("{problem}: {shown}"))
}

fn config(directory: &Path, given: &Given) -> Output {
    if !given.file.is_empty() {
        std::fs::write(directory.join("toa-outbox.toml"), &given.file).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_toa-outbox"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TOA_")) {
        command.env_remove(name);
    }
    let vars = given.env.iter().map(|(name, value)| (name, value));
    command
        .current_dir(directory)
        .envs(vars)
        .arg("config")
        .args(&given.args)
        .output()
        .unwrap()
}
