//! C4: an operator that hears of everything half a second late.

use crate::{
    audit::{self, Mark},
    replica::{Plan, Replica},
    world::{World, end, pod_name, status, text},
};
use futures::{StreamExt, future::BoxFuture};
use http::{Request, Response};
use http_body_util::{BodyExt, BodyStream, StreamBody, combinators::UnsyncBoxBody};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
};
use nix::sys::signal::Signal;
use std::{
    collections::HashSet,
    task::{Context, Poll},
    time::{Duration, Instant},
};
use subagent_crds::Phase;
use tower::{BoxError, Service, layer::layer_fn};

/// How late the watches are.
const LAG: Duration = Duration::from_millis(500);
/// Watches' events that may be on their way at a time.
const UNDER_WAY: usize = 4096;
/// Long enough for a dozen runs on a busy machine, and far below what an exponential backoff comes to.
const SOON: Duration = Duration::from_secs(30);

/// A client whose watches are late by `lag`; everything else is as it is.
pub fn client(config: Config, lag: Duration) -> Client {
    let lagging = layer_fn(move |inner| Lagging { inner, lag });
    ClientBuilder::try_from(config).expect("a client").with_layer(&lagging).build()
}

struct Lagging<S> {
    inner: S,
    lag: Duration,
}

impl<S, B> Service<Request<Body>> for Lagging<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Response = Response<UnsyncBoxBody<B::Data, BoxError>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let (lag, answer) = (self.lag, self.inner.call(request));
        Box::pin(async move {
            Ok(answer.await?.map(|body| {
                let body = body.map_err(Into::into);
                if !is_watch {
                    return body.boxed_unsync();
                }
                // The wait of each event begins when it arrives, not when the one before it was handed on.
                let late = move |event| async move {
                    tokio::time::sleep(lag).await;
                    event
                };
                StreamBody::new(BodyStream::new(body).map(late).buffered(UNDER_WAY)).boxed_unsync()
            }))
        })
    }
}

/// C4, T8: a dozen runs, of which one is cancelled and one loses its worker before the turn, with watches that lag. Each
/// gets one pod for each attempt, nothing waits for long, and no status is overwritten by an older view.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c4_t8_watches_that_lag_make_no_second_pod_and_no_long_wait() {
    let world = World::new("lagging").await;
    let operator = Replica::start(Plan { watch_lag: LAG, ..world.plan("first") });
    world.until_leader("first").await;
    world.node.serve();
    world.provider("provider", &[]).await;
    world.provider("slow", &[("SCRIPTED_AGENT_NEW", "gate:session")]).await;
    world.ready("provider").await;
    world.ready("slow").await;
    let mark = Mark::now();
    let began = Instant::now();
    let names: Vec<String> = (0..10).map(|number| format!("run-{number}")).collect();
    for name in &names {
        world.run(name, "provider", &format!("!say {name}")).await;
    }
    world.run("cancelled", "provider", "!hang").await;
    let lost = world.run("lost", "slow", "!say second attempt").await;
    world.event("cancelled", "prompt", "").await;
    world.cancel("cancelled").await;
    world.event("lost", "gate", "session").await;
    world.node.worker(&pod_name(&lost, 1)).await.signal(Signal::SIGKILL);
    world.node.collector().open_gate("session");
    for name in &names {
        let run = world.stopped(name).await;
        assert_eq!((end(&run), text(&run)), ((Phase::Completed, "Completed"), name.as_str()));
        assert_eq!((status(&run).attempt, world.prompts(name)), (Some(1), 1));
    }
    assert_eq!(end(&world.stopped("cancelled").await), (Phase::Cancelled, "Cancelled"));
    let lost = world.stopped("lost").await;
    assert_eq!((end(&lost), status(&lost).attempt), ((Phase::Completed, "Completed"), Some(2)));
    assert_eq!(world.prompts("lost"), 1);
    assert!(began.elapsed() < SOON, "it took {:?}", began.elapsed());
    let asked = mark.requests_of(&world.rights.user);
    let created = asked.iter().filter(|request| request.is_pod_creation() && request.is_counted_write());
    let created: Vec<&str> = created.map(audit::Request::object).collect();
    let different: HashSet<&str> = created.iter().copied().collect();
    assert_eq!((created.len(), different.len()), (names.len() + 3, names.len() + 3), "{created:#?}");
    operator.stop().await;
    world.finish().await;
}
