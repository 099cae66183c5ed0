//! A REP that answers with what it is asked, and a REQ that asks, for any ZeroMQ library on the other side:
//! `echo bind tcp://127.0.0.1:0` prints the endpoint, `echo ask ENDPOINT WORD...` prints the reply to a message of these frames.

use std::error::Error;
use towpath_sockets::{Endpoint, HubOptions, Message, Socket, SocketError, SocketType};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["bind", endpoint] => runtime.block_on(answer(&endpoint.parse()?)),
        ["ask", endpoint, words @ ..] => runtime.block_on(ask(&endpoint.parse()?, words)),
        _ => Err("usage: echo bind ENDPOINT, or echo ask ENDPOINT WORD...".into()),
    }
}

async fn answer(endpoint: &Endpoint) -> Result<(), Box<dyn Error>> {
    let socket = Socket::new(HubOptions::new(SocketType::Rep))?;
    println!("{}", socket.bind(endpoint)?);
    loop {
        let question = socket.recv().await?;
        match socket.send(question.frames.into_iter().collect()).await {
            // The client may be gone; others will come.
            Ok(()) | Err(SocketError::PeerGone(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

async fn ask(endpoint: &Endpoint, words: &[&str]) -> Result<(), Box<dyn Error>> {
    let socket = Socket::new(HubOptions::new(SocketType::Req))?;
    socket.connect(endpoint)?;
    socket.send(words.iter().fold(Message::new(), |message, word| message.with(word.as_bytes().to_vec()))).await?;
    for frame in socket.recv().await?.frames {
        println!("{}", String::from_utf8_lossy(&frame));
    }
    Ok(())
}
