//! A store that cannot write only what is not there yet, and an API server that fails.

use super::*;
use futures::stream::BoxStream;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta as Object, ObjectStore,
    PutMultipartOptions, PutPayload, PutResult, Result as Done, memory::InMemory,
};
use rstest::rstest;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering},
};
use tokio::sync::Notify;

/// One ConfigMap, or none; or an API server that has only one answer.
#[derive(Debug, Default)]
struct Server {
    config_map: Mutex<Option<Value>>,
    created: Notify,
    reads: Option<StatusCode>,
    writes: Option<StatusCode>,
}

impl Server {
    async fn answer(self: Arc<Self>, request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let is_read = request.method() == Method::GET;
        let fixed = if is_read { self.reads } else { self.writes };
        let body = request.into_body().collect_bytes().await.unwrap();
        let mut stored = self.config_map.lock().unwrap();
        let (status, body) = match (fixed, is_read, stored.as_ref()) {
            (Some(status), ..) => (status, refused(status, "Fails")),
            (None, true, Some(found)) => (StatusCode::OK, found.clone()),
            (None, true, None) => (StatusCode::NOT_FOUND, refused(StatusCode::NOT_FOUND, "NotFound")),
            (None, false, Some(_)) => (StatusCode::CONFLICT, refused(StatusCode::CONFLICT, "AlreadyExists")),
            (None, false, None) => {
                self.created.notify_one();
                (StatusCode::CREATED, stored.insert(serde_json::from_slice(&body).unwrap()).clone())
            }
        };
        Ok(Response::builder().status(status).body(Body::from(body.to_string().into_bytes())).unwrap())
    }
}

fn refused(status: StatusCode, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": reason, "reason": reason,
        "code": status.as_u16()})
}

/// A place where a write of what is not there yet ends in an error.
#[derive(Debug)]
struct Place {
    objects: InMemory,
    refuses: fn() -> Error,
    /// What somebody else writes at the same time.
    theirs: Option<&'static str>,
    puts: AtomicUsize,
    server: Arc<Server>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Place")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Place {
    async fn put_opts(&self, path: &Path, content: PutPayload, options: PutOptions) -> Done<PutResult> {
        if options.mode == PutMode::Create {
            if let Some(theirs) = self.theirs {
                self.objects.put(path, theirs.into()).await?;
            }
            return Err((self.refuses)());
        }
        // A second one comes at the worst time: when what the first has written is remembered.
        if self.puts.fetch_add(1, Ordering::Relaxed) > 0 {
            self.server.created.notified().await;
        }
        self.objects.put_opts(path, content, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Done<GetResult> {
        let found = self.objects.get_opts(path, options).await;
        // What was read is told when others have read, too.
        tokio::task::yield_now().await;
        found
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Done<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Done<Path>>) -> BoxStream<'static, Done<Path>> {
        self.objects.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Done<Object>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Done<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Done<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

fn store(server: Server, refuses: fn() -> Error, theirs: Option<&'static str>) -> (Arc<Server>, Store) {
    let server = Arc::new(server);
    let answers = server.clone();
    let client = Client::new(tower::service_fn(move |request| answers.clone().answer(request)), "operators");
    let (objects, puts) = (InMemory::new(), AtomicUsize::new(0));
    let place = Place { objects, refuses, theirs, puts, server: server.clone() };
    let opened = Store::open("file:///nowhere", []).unwrap().unwrap();
    let store = Store { objects: Arc::new(place), folder: None, ..opened };
    (server, store.of(Installation::new(client, "operators", "mark")))
}

fn not_implemented() -> Error {
    Error::NotImplemented { operation: "create".into(), implementer: "Place".into() }
}

fn of_a_disk(code: i32) -> Error {
    Error::Generic { store: "LocalFileSystem", source: Box::new(io::Error::from_raw_os_error(code)) }
}

fn of_a_server(said: &'static str) -> Error {
    Error::Generic { store: "S3", source: said.into() }
}

/// R9, R10: the leader looks again and again, and so does whoever accepts a child.
#[tokio::test]
async fn r9_two_that_take_the_store_in_one_process_do_not_meet() {
    let (server, store) = store(Server::default(), not_implemented, None);
    let both = async { tokio::join!(store.take_as_ours(), store.take_as_ours()) };
    assert_eq!(tokio::time::timeout(Duration::from_secs(60), both).await.unwrap(), (Ok(()), Ok(())));
    let known = server.config_map.lock().unwrap().as_ref().map(|found| found["data"][ID].clone());
    assert_eq!(known, Some(json!(store.mark().await.unwrap())));
}

/// R9, R10: what was written by somebody else, as by the leader before, while this one got an error.
#[rstest]
#[case::a_device_that_fails(|| of_a_disk(5), false)]
#[case::overloaded(|| of_a_server("503 Service Unavailable"), false)]
#[case::no_conditions(not_implemented, true)]
#[tokio::test]
async fn r9_a_mark_is_never_overwritten(#[case] refuses: fn() -> Error, #[case] at_once: bool) {
    let (_, store) = store(Server::default(), refuses, Some("theirs"));
    assert_eq!(store.take_as_ours().await.is_ok(), at_once);
    assert_eq!(store.mark().await, Ok(Some("theirs".into())));
    assert_eq!(store.take_as_ours().await, Ok(()), "it goes on from what is stored");
}

#[rstest]
#[case::no_such_call(not_implemented(), true)]
#[case::not_permitted_by_the_file_system(of_a_disk(1), true)]
#[case::too_many_links(of_a_disk(31), true)]
#[case::no_such_system_call(of_a_disk(38), true)]
#[case::not_supported(of_a_disk(95), true)]
#[case::not_supported_by_a_server_of_files(of_a_disk(524), true)]
#[case::a_header_that_is_not_implemented(of_a_server("non-2xx status code: 501 Not Implemented: "), true)]
#[case::the_same_by_its_code(of_a_server("400 Bad Request: <Error><Code>NotImplemented</Code></Error>"), true)]
#[case::a_device_that_fails(of_a_disk(5), false)]
#[case::full(of_a_disk(28), false)]
#[case::stale(of_a_disk(116), false)]
#[case::overloaded(of_a_server("503 Service Unavailable"), false)]
fn r9_what_cannot_be_done_is_told_from_what_failed(#[case] error: Error, #[case] cannot: bool) {
    assert_eq!(cannot_create(&error), cannot, "{error}");
}

/// c34: it may pass, and is no word about the store.
#[rstest]
#[case::reads_fail(Server { reads: Some(StatusCode::SERVICE_UNAVAILABLE), ..Server::default() })]
#[case::quota(Server { writes: Some(StatusCode::FORBIDDEN), ..Server::default() })]
#[case::writes_fail(Server { writes: Some(StatusCode::INTERNAL_SERVER_ERROR), ..Server::default() })]
#[tokio::test]
async fn c34_an_api_server_that_fails_is_not_taken_for_the_store(#[case] server: Server) {
    let (_, store) = store(server, not_implemented, None);
    let error = store.take_as_ours().await.unwrap_err();
    assert!(matches!(error, StoreError::Unknown { .. }) && error.may_pass(), "{error}");
    assert!(error.to_string().contains("operators/mark"), "{error}");
}
