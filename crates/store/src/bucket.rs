//! A bucket of an object store with the API of S3, Azure Blob Storage or Google Cloud Storage.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, TryStreamExt as _};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{
    ClientConfigKey, ClientOptions, Error, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload,
    RetryConfig, WriteMultipart,
};
use tokio::sync::Mutex;

use super::error::file_error;
use super::{Creation, MAX_RECORD_BYTES, ObjectError, Pending, ShardStore};

/// Size of the parts of an upload. S3 accepts parts of 5 MiB or more, and at most 10 000 of them.
const PART_BYTES: usize = 8 << 20;
/// Parts of an upload that are in flight at the same time. Together with the part being read, they bound the memory.
const PARTS_IN_FLIGHT: usize = 3;

/// Time limit of a request with its content: a part of an upload may use a link of 1 Mbit/s together with others. A server that
/// cannot be reached is noticed sooner: the client waits 5 s for a connection, and its keepalives end a dead one.
const REQUEST_TIMEOUT: &str = "5min";
/// Time after which a failed request is not repeated. A repeated request has the signature of the first one, which S3 accepts for
/// 15 minutes.
const RETRY_TIMEOUT: Duration = Duration::from_secs(600);
/// How often an object is created at most when no answer comes.
const MAX_CREATES: u32 = 3;

/// Objects of a bucket, all with the same prefix.
pub(crate) struct Bucket {
    store: Arc<dyn ObjectStore>,
    /// Empty, or without a slash at the end.
    prefix: String,
    location: String,
    /// Held during a multipart upload. Trials that end at the same time take turns, which bounds the memory.
    in_pieces: Mutex<()>,
}

/// The client of a bucket, or why there is none.
type Connection = Result<Arc<dyn ObjectStore>, Error>;

/// Makes the client of a bucket with the S3 API.
fn s3(builder: AmazonS3Builder, bucket: &str) -> Connection {
    const TIMEOUT: AmazonS3ConfigKey = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
    let timeout = request_timeout(builder.get_config_value(&TIMEOUT));
    let builder = builder.with_bucket_name(bucket).with_config(TIMEOUT, timeout);
    let builder = builder.with_retry(retry());
    let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint]
        .iter()
        .find_map(|key| builder.get_config_value(key));
    let builder = if is_http(endpoint) { builder.with_allow_http(true) } else { builder };
    Ok(Arc::new(builder.build()?))
}

/// Makes the client of a container of Azure Blob Storage.
fn azure(builder: MicrosoftAzureBuilder, container: &str) -> Connection {
    const TIMEOUT: AzureConfigKey = AzureConfigKey::Client(ClientConfigKey::Timeout);
    let timeout = request_timeout(builder.get_config_value(&TIMEOUT));
    let builder = builder.with_container_name(container).with_config(TIMEOUT, timeout);
    let builder = builder.with_retry(retry());
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    let builder = if is_http(endpoint) { builder.with_allow_http(true) } else { builder };
    Ok(Arc::new(builder.build()?))
}

/// Makes the client of a Google Cloud Storage bucket.
fn gcs(builder: GoogleCloudStorageBuilder, bucket: &str) -> Connection {
    const TIMEOUT: GoogleConfigKey = GoogleConfigKey::Client(ClientConfigKey::Timeout);
    let timeout = request_timeout(builder.get_config_value(&TIMEOUT));
    let builder = builder.with_bucket_name(bucket).with_config(TIMEOUT, timeout);
    Ok(Arc::new(builder.with_retry(retry()).build()?))
}

/// Returns the time limit of a request: [`REQUEST_TIMEOUT`], unless the environment sets another one (`AWS_TIMEOUT`).
fn request_timeout(configured: Option<String>) -> String {
    let default = ClientOptions::default().get_config_value(&ClientConfigKey::Timeout);
    let given = if configured == default { None } else { configured };
    given.unwrap_or_else(|| REQUEST_TIMEOUT.to_owned())
}

/// Returns when failed requests are repeated.
fn retry() -> RetryConfig {
    RetryConfig { retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() }
}

/// Returns whether the server may have done what was requested although there is no answer.
fn is_unanswered(error: &Error) -> bool {
    let first: Option<&(dyn std::error::Error + 'static)> = Some(error);
    std::iter::successors(first, |&error| error.source())
        .filter_map(|error| error.downcast_ref::<HttpError>())
        .any(|error| matches!(error.kind(), HttpErrorKind::Timeout | HttpErrorKind::Interrupted))
}

/// Returns whether the endpoint's scheme is http. A user who writes it means it, for example for a store in the cluster's
/// network.
fn is_http(endpoint: Option<String>) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"))
}

impl Bucket {
    /// Opens `s3://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or `gs://BUCKET/PREFIX`. Sends no request.
    pub(crate) fn open(location: &str) -> Result<Self, ObjectError> {
        Self::with(location, |scheme, bucket| match scheme {
            "s3" => Some(s3(AmazonS3Builder::from_env(), bucket)),
            "az" => Some(azure(MicrosoftAzureBuilder::from_env(), bucket)),
            "gs" => Some(gcs(GoogleCloudStorageBuilder::from_env(), bucket)),
            _ => None,
        })
    }

    /// Like [`Self::open`], but `connect` makes the client for a scheme and a bucket; it returns `None` for an unknown scheme.
    fn with(
        location: &str,
        connect: impl FnOnce(&str, &str) -> Option<Connection>,
    ) -> Result<Self, ObjectError> {
        let invalid = || ObjectError::Url { url: location.to_owned() };
        let (scheme, rest) = location.split_once("://").ok_or_else(invalid)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/').to_owned();
        if bucket.is_empty() || Path::parse(&prefix).is_err() {
            return Err(invalid());
        }
        let connection = connect(scheme, bucket).ok_or_else(invalid)?;
        let store = connection.map_err(|source| ObjectError::Request {
            op: "open",
            url: location.to_owned(),
            source,
        })?;
        let location = location.trim_end_matches('/').to_owned();
        Ok(Self { store, prefix, location, in_pieces: Mutex::new(()) })
    }

    /// Returns the path of a key in the bucket.
    fn path(&self, key: &str) -> Result<Path, ObjectError> {
        let separator = if self.prefix.is_empty() { "" } else { "/" };
        Path::parse(format!("{}{separator}{key}", self.prefix))
            .map_err(|source| self.error("name", key)(source.into()))
    }

    /// Adds the operation and the object to an error.
    fn error(&self, op: &'static str, key: &str) -> impl FnOnce(Error) -> ObjectError + use<> {
        let url = format!("{}/{key}", self.location);
        move |source| ObjectError::Request { op, url, source }
    }

    async fn put_file(&self, key: &str, file: &FilePath) -> Result<(), ObjectError> {
        let path = self.path(key)?;
        let read_error = || file_error("read", file);
        let mut source = File::open(file).map_err(read_error())?;
        let bytes = source.metadata().map_err(read_error())?.len();
        if bytes <= PART_BYTES as u64 {
            let mut content = Vec::new();
            source.read_to_end(&mut content).map_err(read_error())?;
            let put = self.store.put(&path, content.into()).await;
            return put.map(|_| ()).map_err(self.error("write", key));
        }
        let _turn = self.in_pieces.lock().await;
        let upload = self.store.put_multipart(&path).await.map_err(self.error("write", key))?;
        let mut writer = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        match send(&mut source, &mut writer).await {
            Ok(()) => writer.finish().await.map(|_| ()).map_err(self.error("write", key)),
            Err(error) => {
                // Otherwise the parts would stay in the bucket, invisible. The first error is the one to report.
                let _ = writer.abort().await;
                Err(match error {
                    SendError::Read(source) => file_error("read", file)(source),
                    SendError::Send(source) => self.error("write", key)(source),
                })
            }
        }
    }

    async fn keys(&self, folder: &str) -> Result<Vec<String>, ObjectError> {
        let path = self.path(folder)?;
        let listed = self.store.list(Some(&path)).try_collect::<Vec<_>>().await;
        let below = |location: &str| match self.prefix.as_str() {
            "" => Some(location.to_owned()),
            prefix => Some(location.strip_prefix(prefix)?.strip_prefix('/')?.to_owned()),
        };
        let objects = listed.map_err(self.error("list", folder))?;
        let mut keys: Vec<String> =
            objects.iter().filter_map(|object| below(object.location.as_ref())).collect();
        keys.sort();
        Ok(keys)
    }

    async fn has(&self, key: &str) -> Result<bool, ObjectError> {
        match self.store.head(&self.path(key)?).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(source) => Err(self.error("read", key)(source)),
        }
    }

    /// Creates an object. Repeats the request if there is no answer. The client does not do this itself, because the object may be
    /// that of the first request: then the result is [`Creation::Exists`], and callers compare the contents.
    async fn put_new(&self, key: &str, content: Vec<u8>) -> Result<Creation, ObjectError> {
        let (path, payload) = (self.path(key)?, PutPayload::from(content));
        let mut sent = 0;
        loop {
            sent += 1;
            match self.store.put_opts(&path, payload.clone(), PutMode::Create.into()).await {
                Ok(_) => return Ok(Creation::New),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                    return Ok(Creation::Exists);
                }
                Err(error) if sent < MAX_CREATES && is_unanswered(&error) => {}
                Err(source) => return Err(self.error("create", key)(source)),
            }
        }
    }

    async fn content(&self, key: &str) -> Result<Option<Vec<u8>>, ObjectError> {
        let path = self.path(key)?;
        let found = match self.store.get(&path).await {
            Err(Error::NotFound { .. }) => return Ok(None),
            found => found.map_err(self.error("read", key))?,
        };
        if found.meta.size > MAX_RECORD_BYTES {
            let url = format!("{}/{key}", self.location);
            return Err(ObjectError::TooLarge { url, bytes: found.meta.size });
        }
        let content = found.bytes().await.map_err(self.error("read", key))?;
        Ok(Some(content.to_vec()))
    }

    async fn get_file(&self, key: &str, file: &FilePath) -> Result<(), ObjectError> {
        let path = self.path(key)?;
        let mut target = File::create_new(file).map_err(file_error("create", file))?;
        let found = self.store.get(&path).await.map_err(self.error("read", key))?;
        let mut pieces = found.into_stream();
        while let Some(piece) = pieces.try_next().await.map_err(self.error("read", key))? {
            target.write_all(&piece).map_err(file_error("write", file))?;
        }
        Ok(())
    }
}

/// Why a file could not be sent.
enum SendError {
    Read(std::io::Error),
    Send(Error),
}

/// Sends a file in parts. Waits while too many parts are in flight.
async fn send(source: &mut File, writer: &mut WriteMultipart) -> Result<(), SendError> {
    const PIECE_BYTES: usize = 256 << 10;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = source.read(&mut piece).map_err(SendError::Read)?;
        if read == 0 {
            return Ok(());
        }
        writer.wait_for_capacity(PARTS_IN_FLIGHT).await.map_err(SendError::Send)?;
        writer.write(piece.get(..read).unwrap_or_default());
    }
}

impl ShardStore for Bucket {
    fn location(&self) -> &str {
        &self.location
    }

    fn upload<'a>(&'a self, key: &'a str, file: &'a FilePath) -> Pending<'a, ()> {
        self.put_file(key, file).boxed_local()
    }

    fn create<'a>(&'a self, key: &'a str, content: Vec<u8>) -> Pending<'a, Creation> {
        self.put_new(key, content).boxed_local()
    }

    fn list<'a>(&'a self, folder: &'a str) -> Pending<'a, Vec<String>> {
        self.keys(folder).boxed_local()
    }

    fn exists<'a>(&'a self, key: &'a str) -> Pending<'a, bool> {
        self.has(key).boxed_local()
    }

    fn read<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Vec<u8>>> {
        self.content(key).boxed_local()
    }

    fn download<'a>(&'a self, key: &'a str, file: &'a FilePath) -> Pending<'a, ()> {
        self.get_file(key, file).boxed_local()
    }

    fn remove<'a>(&'a self, key: &'a str) -> Pending<'a, ()> {
        async move {
            let path = self.path(key)?;
            match self.store.delete(&path).await {
                Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
                Err(source) => Err(self.error("remove", key)(source)),
            }
        }
        .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use ccbench_tests::s3::S3Server;
    use object_store::memory::InMemory;

    use super::*;
    use crate::check_creation;

    #[test]
    fn a_url_names_a_bucket_and_perhaps_a_prefix() {
        let open = |url: &str| Bucket::open(url).map(|bucket| bucket.path("commits/a=1").unwrap());
        assert_eq!(open("s3://results").unwrap().as_ref(), "commits/a=1");
        assert_eq!(open("s3://results/").unwrap().as_ref(), "commits/a=1");
        assert_eq!(open("s3://results/one/two/").unwrap().as_ref(), "one/two/commits/a=1");
        for url in ["s3://", "s3:///x", "ftp://results", "s3://results/../x"] {
            let error = open(url).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{url}` is not the URL of a bucket")), "{error}");
        }
    }

    /// Needs no server: checks which client a URL gets, and which variables an error message names.
    #[test]
    fn schemes_have_clients_of_their_own() {
        let name = |connection: Connection| connection.unwrap().to_string();
        let account = MicrosoftAzureBuilder::new().with_account("account");
        let found = azure(account.with_endpoint("http://10.0.0.1:10000".to_owned()), "results");
        assert!(name(found).contains("Azure"));
        assert!(name(gcs(GoogleCloudStorageBuilder::new(), "results")).contains("Google"));
        assert!(name(s3(AmazonS3Builder::new(), "results")).contains("S3"));
        for (scheme, variable) in [
            ("s3", "AWS_ACCESS_KEY_ID"),
            ("az", "AZURE_STORAGE_ACCOUNT_NAME"),
            ("gs", "GOOGLE_SERVICE_ACCOUNT"),
        ] {
            let url = format!("{scheme}://results/x");
            let source = Error::Unauthenticated { path: "x".to_owned(), source: "no".into() };
            let error = ObjectError::Request { op: "read", url, source }.to_string();
            assert!(error.contains(variable), "{error}");
            // A store that is written to begins with a create and a delete.
            assert!(error.contains("may read, write, list and delete objects"), "{error}");
        }
    }

    #[test]
    fn a_slow_link_has_time_unless_the_environment_says_otherwise() {
        let timeout = |builder: &AmazonS3Builder| {
            let key = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
            request_timeout(builder.get_config_value(&key))
        };
        assert_eq!(timeout(&AmazonS3Builder::new()), REQUEST_TIMEOUT);
        let key = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
        assert_eq!(timeout(&AmazonS3Builder::new().with_config(key, "7s")), "7s");
        assert_eq!(retry().retry_timeout, RETRY_TIMEOUT);
    }

    /// Reads the head and the body of a request.
    fn read_request(stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line).unwrap() > 2 {
            let (name, value) = line.split_once(": ").unwrap_or_default();
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim_end().parse().unwrap();
            }
            line.clear();
        }
        reader.read_exact(&mut vec![0; length]).unwrap();
    }

    /// The server keeps the object of the first request, but its answer is lost.
    #[test]
    fn a_creation_without_an_answer_is_repeated() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let builder = AmazonS3Builder::new()
            .with_endpoint(format!("http://{}", server.local_addr().unwrap()))
            .with_access_key_id("test")
            .with_secret_access_key("testsecret")
            .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), "1s");
        let connect = |_: &str, bucket: &str| Some(s3(builder, bucket));
        let bucket = Bucket::with("s3://ccbench/a", connect).unwrap();
        let answers = std::thread::spawn(move || {
            let (unanswered, _) = server.accept().unwrap();
            read_request(&unanswered);
            let (mut answered, _) = server.accept().unwrap();
            read_request(&answered);
            let refusal = b"HTTP/1.1 412 Precondition Failed\r\ncontent-length: 0\r\n\r\n";
            answered.write_all(refusal).unwrap();
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let created = runtime.block_on(bucket.create("commits/c", b"1".to_vec())).unwrap();
        assert_eq!(created, Creation::Exists);
        answers.join().unwrap();
    }

    /// Bytes without repetition, for more than two parts.
    fn large() -> Vec<u8> {
        (0..(2 * PART_BYTES as u32 + 12_345) / 4).flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn a_server_keeps_small_and_large_objects() {
        let Some(server) = S3Server::start() else { return };
        server.create_bucket("ccbench");
        let builder = AmazonS3Builder::new()
            .with_endpoint(server.endpoint())
            .with_access_key_id("test")
            .with_secret_access_key("testsecret");
        let connect = |_: &str, bucket: &str| Some(s3(builder, bucket));
        keeps_objects(&Bucket::with("s3://ccbench/a/b", connect).unwrap());
    }

    /// Runs the same checks in memory and in empty locations of the user's choice, for example of Azurite or of a real account,
    /// with the credentials of the environment: `CCBENCH_TEST_BUCKETS="az://container/a gs://bucket/b"`.
    #[test]
    fn other_stores_keep_small_and_large_objects() {
        let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        keeps_objects(&Bucket::with("az://ccbench/a/b", |_, _| Some(Ok(memory))).unwrap());
        let urls = std::env::var("CCBENCH_TEST_BUCKETS").unwrap_or_default();
        for url in urls.split_whitespace() {
            keeps_objects(&Bucket::open(url).unwrap());
        }
    }

    fn keeps_objects(bucket: &Bucket) {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("small"), "content").unwrap();
        std::fs::write(at("large"), large()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            check_creation(bucket, "probe").await.unwrap();
            for name in ["small", "large"] {
                bucket.upload(&format!("files/point=1/{name}"), &at(name)).await.unwrap();
            }
            assert_eq!(bucket.create("files/c", b"1".to_vec()).await.unwrap(), Creation::New);
            assert_eq!(bucket.create("files/c", b"2".to_vec()).await.unwrap(), Creation::Exists);
            assert_eq!(bucket.read("files/c").await.unwrap().unwrap(), b"1");
            assert_eq!(bucket.read("files/d").await.unwrap(), None);
            assert!(bucket.exists("files/c").await.unwrap());
            assert!(!bucket.exists("files/d").await.unwrap());
            let keys = ["files/c", "files/point=1/large", "files/point=1/small"];
            assert_eq!(bucket.list("files").await.unwrap(), keys);
            assert_eq!(bucket.list("none").await.unwrap(), [""; 0]);
            bucket.download("files/point=1/large", &at("copy")).await.unwrap();
            assert!(std::fs::read(at("copy")).unwrap() == large());
            let absent = bucket.download("files/none", &at("none")).await.unwrap_err();
            assert!(absent.is_absent(), "{absent}");
            assert_eq!(bucket.list("").await.unwrap(), keys);
            for _ in 0..2 {
                bucket.remove("files/c").await.unwrap();
            }
            assert_eq!(bucket.list("files").await.unwrap(), keys[1..]);
        });
    }
}
