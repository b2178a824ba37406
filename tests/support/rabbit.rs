//! A private RabbitMQ node.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::authority::Identity;
use super::eventually;
use super::leash::{self, Leash};
use super::ports;

const START: Duration = Duration::from_secs(90);

/// One node with its own port mapper, cookie and data; nothing of the system's broker is touched.
pub struct Rabbit {
    leash: Leash,
    port: u16,
    secure_port: Option<u16>,
}

impl Rabbit {
    /// Starts a node; it serves AMQP when this returns, which takes some seconds.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// The same, with lines of `rabbitmq.conf`, such as `max_message_size = 1048576`.
    pub async fn start_with(config: &[&str]) -> Self {
        let folder = leash::folder();
        fs::write(folder.join("rabbitmq.conf"), config.join("\n") + "\n").expect("rabbitmq.conf");

        // AMQP, distribution, port mapper.
        let port = ports::free(3);
        let mut command = Command::new(leash::script("rabbit.sh"));
        command
            .arg(&folder)
            .arg(port.to_string())
            .arg("rabbitmq-server");

        let rabbit = Self {
            leash: Leash::hold(folder, command).await,
            port,
            secure_port: None,
        };
        rabbit.serves().await;
        rabbit
    }

    /// One that speaks TLS on another port, to clients with a certificate that `ca` signed.
    pub async fn start_secure(ca: &Path, own: &Identity) -> Self {
        let port = ports::free(1);
        let file = |name: &str, path: &Path| format!("ssl_options.{name} = {}", path.display());
        let config = [
            format!("listeners.ssl.1 = 127.0.0.1:{port}"),
            file("cacertfile", ca),
            file("certfile", &own.cert),
            file("keyfile", &own.key),
            "ssl_options.verify = verify_peer".into(),
            "ssl_options.fail_if_no_peer_cert = true".into(),
        ];
        let config: Vec<&str> = config.iter().map(String::as_str).collect();
        Self {
            secure_port: Some(port),
            ..Self::start_with(&config).await
        }
    }

    /// Where clients connect that speak TLS.
    pub fn secure_port(&self) -> u16 {
        self.secure_port.expect("it speaks TLS")
    }

    /// Where AMQP clients connect.
    pub fn uri(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs `rabbitmqctl`; what it printed, or what it complained about.
    pub async fn ctl(&self, args: &[&str]) -> Result<String, String> {
        let output = tokio::process::Command::new(leash::script("rabbit.sh"))
            .arg(self.leash.folder())
            .arg(self.port.to_string())
            .args(["rabbitmqctl", "--quiet"])
            .args(args)
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| error.to_string())?;

        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }

    /// Shuts the node down cleanly: clients are told, durable queues are kept.
    pub async fn stop(&self) {
        self.leash.signal(Signal::TERM);
        self.leash.ended().await;
    }

    /// Kills the node (-9) and waits until it is gone.
    pub async fn kill(&self) {
        self.leash.signal(Signal::KILL);
        self.leash.ended().await;
    }

    /// Starts it on the same data and port, after [`stop`](Self::stop) or [`kill`](Self::kill).
    pub async fn start_again(&self) {
        self.leash.start_again().await;
        self.serves().await;
    }

    /// Freezes the process: connections stay open, nothing answers.
    pub fn pause(&self) {
        self.leash.signal(Signal::STOP);
    }

    /// Ends [`pause`](Self::pause).
    pub fn resume(&self) {
        self.leash.signal(Signal::CONT);
    }

    /// What it has used of the processors since it was last started.
    pub fn processor_time(&self) -> Duration {
        self.leash.processor_time()
    }

    /// How often a channel was closed for an exchange that is missing, by the broker's own log.
    pub fn missed(&self, exchange: &str) -> usize {
        let log = self.leash.folder().join("log");
        let log = log.join(format!("toa{}@localhost.log", self.port));
        let log = fs::read_to_string(log).expect("the log of the broker");
        log.matches(&format!("no exchange '{exchange}'")).count()
    }

    /// Closes every client's connection; clients may connect again at once.
    pub async fn close_all_connections(&self) {
        self.ctl(&["close_all_connections", "by a test"])
            .await
            .expect("closed");
    }

    /// Raises the memory alarm: the node reads nothing more from connections that publish.
    pub async fn block(&self) {
        self.ctl(&["set_vm_memory_high_watermark", "0"])
            .await
            .expect("blocked");
    }

    /// Ends [`block`](Self::block).
    pub async fn unblock(&self) {
        self.ctl(&["set_vm_memory_high_watermark", "0.4"])
            .await
            .expect("unblocked");
    }

    async fn serves(&self) {
        eventually(START, "RabbitMQ serves", async || {
            assert!(
                self.leash.runs(),
                "RabbitMQ ended (install.sh brings it): {}",
                self.leash.output()
            );
            self.greets().await.is_ok_and(|first| first == METHOD_FRAME)
        })
        .await;
    }

    /// Opens the protocol; the type of the frame that the node answers with.
    async fn greets(&self) -> std::io::Result<u8> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.write_all(b"AMQP\x00\x00\x09\x01").await?;
        stream.read_u8().await
    }
}

/// `connection.start` comes in one.
const METHOD_FRAME: u8 = 1;
