//! An HTTP server that does what it is told, the wrong things above all, and writes down what it was asked.
//!
//! It speaks by hand over TCP, since no proper server would misbehave like this.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// A server on a port of its own, for as long as it is not dropped. It answers 204 until it is told otherwise.
pub struct Hook {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// None while it is away.
    serving: Mutex<Option<JoinSet<()>>>,
}

struct Shared {
    conduct: Mutex<Conduct>,
    asked: Mutex<Vec<Asked>>,
    answered: Mutex<Vec<(u16, Asked)>>,
    /// How many connections there were.
    connections: Mutex<usize>,
}

type Conduct = Arc<dyn Fn(&Asked) -> Reply + Send + Sync>;

/// A request.
#[derive(Clone, Debug)]
pub struct Asked {
    pub line: String,
    /// By names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }
}

/// What it does with a request.
#[derive(Clone, Debug)]
pub enum Reply {
    Answer(u16, Vec<(&'static str, String)>, String),
    /// The same after a while.
    Late(Duration, Box<Reply>),
    /// Status and a part of a body, and then it hangs up.
    Half(u16),
    /// As much of it as anyone reads.
    Endless(u16),
    /// A byte now and then, as slowly as it can.
    Trickle,
    /// The other side finds the connection reset.
    Reset,
    /// Hangs up without a word.
    HangUp,
    /// Never says a word.
    Silence,
    Nonsense,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self::Answer(status, Vec::new(), String::new())
    }

    pub fn body(status: u16, body: impl Into<String>) -> Self {
        Self::Answer(status, Vec::new(), body.into())
    }

    pub fn with(status: u16, name: &'static str, value: impl Into<String>) -> Self {
        Self::Answer(status, vec![(name, value.into())], String::new())
    }
}

impl Hook {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let hook = Self {
            address: listener.local_addr().expect("an address"),
            shared: Arc::new(Shared {
                conduct: Mutex::new(Arc::new(|_: &Asked| Reply::status(204))),
                asked: Mutex::default(),
                answered: Mutex::default(),
                connections: Mutex::default(),
            }),
            serving: Mutex::default(),
        };
        hook.serve(listener);
        hook
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// From the next request on.
    pub fn answers(&self, conduct: impl Fn(&Asked) -> Reply + Send + Sync + 'static) {
        *self.shared.conduct.lock().unwrap() = Arc::new(conduct);
    }

    /// Nobody listens any more, and nobody is connected.
    pub async fn leave(&self) {
        let serving = self.serving.lock().unwrap().take();
        if let Some(mut serving) = serving {
            serving.shutdown().await;
        }
    }

    /// Listens at the same address again.
    pub async fn come_back(&self) {
        let listener = TcpListener::bind(self.address).await;
        self.serve(listener.expect("the port is still free"));
    }

    /// What it was asked so far, whole requests only.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// What it was asked and has answered with this status, perhaps to nobody any more.
    pub fn answered(&self, status: u16) -> Vec<Asked> {
        let answered = self.shared.answered.lock().unwrap();
        let fits = answered.iter().filter(|(with, _)| *with == status);
        fits.map(|(_, asked)| asked.clone()).collect()
    }

    pub fn connections(&self) -> usize {
        *self.shared.connections.lock().unwrap()
    }

    fn serve(&self, listener: TcpListener) {
        let shared = self.shared.clone();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            // Dropped with this task.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                *shared.connections.lock().unwrap() += 1;
                connections.spawn(talk(stream, shared.clone()));
            }
        });
        *self.serving.lock().unwrap() = Some(serving);
    }
}

/// One connection, until one of the two has enough.
async fn talk(stream: TcpStream, shared: Arc<Shared>) {
    let mut stream = BufReader::new(stream);
    while let Some(asked) = read(&mut stream).await {
        let conduct = shared.conduct.lock().unwrap().clone();
        let reply = conduct(&asked);
        shared.asked.lock().unwrap().push(asked.clone());
        if let Reply::Answer(status, ..) = reply {
            shared.answered.lock().unwrap().push((status, asked));
        }
        if !act(stream.get_mut(), reply).await {
            return;
        }
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Asked> {
    let line = line(stream).await?;
    let mut headers = BTreeMap::new();
    loop {
        let header = self::line(stream).await?;
        let Some((name, value)) = header.split_once(':') else {
            break;
        };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or("0", String::as_str);
    let mut body = vec![0; length.parse().ok()?];
    stream.read_exact(&mut body).await.ok()?;
    Some(Asked {
        line,
        headers,
        body,
    })
}

async fn line(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    let length = stream.read_line(&mut line).await.ok()?;
    (length > 0).then(|| line.trim_end().to_owned())
}

/// Whether the connection goes on.
async fn act(stream: &mut TcpStream, reply: Reply) -> bool {
    let mut reply = reply;
    while let Reply::Late(after, then) = reply {
        tokio::time::sleep(after).await;
        reply = *then;
    }
    match reply {
        Reply::Answer(status, headers, body) => answer(stream, status, headers, &body).await,
        Reply::Half(status) => {
            let text = format!("HTTP/1.1 {status} X\r\ncontent-length: 100\r\n\r\nhalf of");
            let _ = stream.write_all(text.as_bytes()).await;
            false
        }
        Reply::Endless(status) => {
            let text = format!("HTTP/1.1 {status} X\r\ncontent-type: text/plain\r\n\r\n");
            let mut is_read = stream.write_all(text.as_bytes()).await.is_ok();
            while is_read {
                is_read = stream.write_all(&[b'x'; 16 * 1024]).await.is_ok();
            }
            false
        }
        Reply::Trickle => {
            let mut is_read = stream.write_all(b"HTTP/1.1 200 X\r\n\r\n").await.is_ok();
            while is_read {
                // Slowness is what it is about.
                tokio::time::sleep(Duration::from_millis(20)).await;
                is_read = stream.write_all(b"x").await.is_ok();
            }
            false
        }
        Reply::Reset => {
            let _ = stream.set_zero_linger();
            false
        }
        Reply::Silence => std::future::pending().await,
        Reply::Nonsense => {
            let _ = stream.write_all(b"220 mail.example ESMTP\r\n").await;
            false
        }
        Reply::HangUp | Reply::Late(..) => false,
    }
}

async fn answer(
    stream: &mut TcpStream,
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: &str,
) -> bool {
    let mut text = format!("HTTP/1.1 {status} X\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if status != 204 {
        text += &format!("content-length: {}\r\n", body.len());
    }
    text += &format!("\r\n{body}");
    stream.write_all(text.as_bytes()).await.is_ok()
}
