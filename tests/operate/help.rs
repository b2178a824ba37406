//! What the program says of itself.

use crate::stage::{Ran, run};

async fn toa_outbox(args: &[&str]) -> Ran {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_toa-outbox"));
    command.args(args);
    run(command).await
}

#[tokio::test]
async fn every_command_has_an_example_and_the_exit_codes_are_told() {
    let help = toa_outbox(&["--help"]).await.ends_with(0);
    assert!(help.out.contains("Exit codes:"), "{help:?}");
    for command in [
        "run",
        "config",
        "init",
        "check",
        "status",
        "list",
        "show",
        "publish",
        "tail",
        "sinks",
        "dead",
        "deliveries",
        "completions",
    ] {
        assert!(
            help.out.contains(&format!("\n  {command} ")),
            "{command}: {help:?}"
        );
        for asking in ["-h", "--help"] {
            let help = toa_outbox(&[command, asking]).await.ends_with(0);
            let one = help.out.contains("Example:\n  toa-outbox");
            let some = help.out.contains("Examples:\n  toa-outbox");
            assert!(one || some, "{help:?}");
        }
    }
}

#[tokio::test]
async fn shells_can_complete() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = toa_outbox(&["completions", shell]).await.ends_with(0);
        assert!(
            script.out.contains("toa-outbox") && script.out.contains("publish"),
            "{shell}"
        );
    }
    toa_outbox(&["completions", "cmd"]).await.ends_with(2);
}

#[tokio::test]
async fn wrong_arguments_are_named() {
    for (args, text) in [
        (
            &["list", "--where", "{lane: 1}"][..],
            "expected a MongoDB filter",
        ),
        (&["list", "--older-than", "5"], "such as 5m"),
        (&["list", "--lane", "128"], "128"),
        (&["list", "--all", "--published"], "cannot be used with"),
        (&["publish"], "required"),
        (&["publish", "--where", "{}"], "--yes"),
        (&["publish", "x", "--where", "{}"], "cannot be used with"),
        (&["status"], "TOA_OUTBOX_MONGODB"),
        (&["dead", "replay"], "--all"),
        (&["dead", "discard"], "--all"),
        (&["dead", "list", "--since", "yesterday"], "such as 2h"),
        (
            &["sinks", "resume", "till"],
            "toa-outbox: the following required arguments were not provided: --circuit <ID>; --help",
        ),
        (
            &["sinks", "resume", "till", "--max-rows", "0"],
            "is not in 1..18446744073709551615; --help tells what there is\n",
        ),
        (&["sinks", "pause", "amqp"], "TOA_OUTBOX_MONGODB"),
    ] {
        let ran = toa_outbox(args).await.ends_with(2);
        assert!(ran.err.contains(text), "{args:?}: {ran:?}");
    }
}

#[tokio::test]
async fn bash_completes_the_options_of_a_command() {
    let script = toa_outbox(&["completions", "bash"]).await.ends_with(0).out;
    let asked = "COMP_WORDS=(toa-outbox list --ol) COMP_CWORD=2\n_toa__outbox toa-outbox --ol list\necho \"${COMPREPLY[@]}\"";
    let bash = tokio::process::Command::new("bash")
        .arg("-c")
        .arg(format!("{script}\n{asked}"))
        .output();
    let completed = String::from_utf8(bash.await.unwrap().stdout).unwrap();
    assert_eq!(completed.trim(), "--older-than");
}
