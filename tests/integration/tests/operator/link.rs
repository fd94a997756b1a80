//! What lies between two programs: connections that can be cut, and a way that can be closed.

use crate::replica::free_port;
use std::{net::Ipv4Addr, sync::Arc};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// A way to a port of this machine. A clone is the same way.
#[derive(Clone)]
pub struct Way {
    /// Where to connect.
    pub port: u16,
    state: Arc<watch::Sender<State>>,
}

#[derive(Clone, Copy, Default)]
struct State {
    cuts: u64,
    closed: bool,
}

impl Way {
    /// A way to that port.
    pub async fn to(target: u16) -> Self {
        let port = free_port();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.expect("a port");
        let state = Arc::new(watch::Sender::new(State::default()));
        let watched = state.clone();
        tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let mut state = watched.subscribe();
                let State { cuts, closed } = *state.borrow_and_update();
                if closed {
                    continue;
                }
                tokio::spawn(async move {
                    // Nobody there: the other end's connection ends, too.
                    let Ok(mut to) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await else { return };
                    tokio::select! {
                        _ = state.wait_for(|now| now.cuts != cuts) => {}
                        _ = tokio::io::copy_bidirectional(&mut from, &mut to) => {}
                    }
                });
            }
        });
        Self { port, state }
    }

    /// Ends every connection; new ones go through.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Ends every connection, and lets none through.
    pub fn close(&self) {
        self.state.send_modify(|state| *state = State { cuts: state.cuts + 1, closed: true });
    }

    /// Lets new connections through again.
    pub fn open(&self) {
        self.state.send_modify(|state| state.closed = false);
    }
}
