//! etcd that wants to see certificates, or users and their passwords.

mod etcd_servers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::PermissionType;
use etcd_servers::{Cluster, Layout};
use masq_control::store::{Change, Store, StoreError};
use masqd::store::{AccessError, Etcd, EtcdConfig, EtcdFiles};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

const LONG: Duration = Duration::from_secs(60);

/// An authority, and certificates by it, as files.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

impl Authority {
    fn new(dir: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = dir.join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("ca.pem"), issuer.pem()).unwrap();
        Authority { issuer, dir }
    }

    /// Makes `name`.pem and `name`.key for 127.0.0.1.
    fn certify(&self, name: &str) {
        let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.file(&format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.file(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn files(&self, name: &str) -> EtcdFiles {
        let (cert, key) = (self.file(&format!("{name}.pem")), self.file(&format!("{name}.key")));
        EtcdFiles { ca: Some(self.file("ca.pem")), cert: Some(cert), key: Some(key), ..EtcdFiles::default() }
    }

    /// A cluster of one that knows itself and its clients by this authority.
    fn cluster(&self) -> Cluster {
        self.certify("server");
        let file = |name: &str| self.file(name).to_str().unwrap().to_owned();
        let options =
            ["--client-cert-auth", "--trusted-ca-file", &file("ca.pem"), "--cert-file", &file("server.pem")]
                .map(String::from)
                .into_iter()
                .chain(["--key-file".into(), file("server.key")])
                .collect();
        Cluster::with(1, Layout { options, tls: true, ..Layout::default() })
    }
}

fn open(config: EtcdConfig, files: EtcdFiles) -> Result<Etcd, AccessError> {
    Etcd::open(EtcdConfig { files, ..config })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_show_certificates_and_strangers_are_told_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, others) = (Authority::new(dir.path(), "ours"), Authority::new(dir.path(), "others"));
    ours.certify("host");
    others.certify("host");
    let cluster = ours.cluster();
    let store = open(cluster.config(LONG), ours.files("host")).unwrap();
    etcd_servers::answers(&store).await;
    let mut watch = store.watch("", store.list("").await.unwrap().revision).await.unwrap();
    store.put("masq/v1/endpoint/a", b"{}".to_vec()).await.unwrap();
    let put = Change::Put { key: "masq/v1/endpoint/a".into(), value: b"{}".to_vec() };
    assert_eq!(watch.next().await.unwrap().changes, [put]);
    store.leave().await;
    assert_eq!(store.get("masq/v1/endpoint/a").await.unwrap(), None);

    let why = |files: EtcdFiles| {
        let store = open(cluster.config(LONG), files).unwrap();
        async move {
            match store.get("k").await {
                Err(StoreError::Unavailable(e)) => e,
                other => panic!("{other:?}"),
            }
        }
    };
    let e = why(others.files("host")).await;
    assert!(e.contains("certificate") && e.contains("UnknownIssuer"), "we do not know them: {e}");
    let e = why(EtcdFiles { ca: ours.files("host").ca, ..others.files("host") }).await;
    assert!(e.contains("127.0.0.1"), "they do not know us: {e}");
    let e = why(EtcdFiles { ca: ours.files("host").ca, ..EtcdFiles::default() }).await;
    assert!(e.contains("127.0.0.1"), "we show nothing: {e}");
    store.get("k").await.unwrap();
}

#[test]
fn files_that_do_not_fit_are_refused_before_anything_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    ours.certify("a");
    ours.certify("b");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let (tls, plain) = ("https://127.0.0.1:1".to_owned(), "http://127.0.0.1:1".to_owned());
    let config = |urls: &[&String]| EtcdConfig::new(urls.iter().map(|u| (*u).clone()).collect());
    let none = EtcdFiles::default;
    let why = |urls: &[&String], files| open(config(urls), files).err().unwrap();
    assert!(matches!(why(&[&tls, &plain], ours.files("a")), AccessError::Mixed));
    assert!(matches!(why(&[&tls], none()), AccessError::NoAuthority));
    assert!(matches!(why(&[&plain], ours.files("a")), AccessError::NoTls));
    let missing = EtcdFiles { ca: Some("/nowhere/ca.pem".into()), ..none() };
    let e = why(&[&tls], missing).to_string();
    assert!(e.contains("/nowhere/ca.pem") && e.contains("No such file"), "{e}");
    let e = why(&[&tls], EtcdFiles { ca: Some(ours.file("a.key")), ..none() }).to_string();
    assert!(e.contains("a.key: no certificates"), "{e}");
    let e = why(&[&tls], EtcdFiles { key: Some(ours.file("a.pem")), ..ours.files("a") }).to_string();
    assert!(e.contains("a.pem: no private key"), "{e}");
    let e = why(&[&tls], EtcdFiles { key: Some(ours.file("b.key")), ..ours.files("a") }).to_string();
    assert!(e.contains("b.key: "), "a key of another certificate: {e}");
    assert!(open(config(&[&tls]), ours.files("a")).is_ok());
    assert!(open(config(&[&plain]), none()).is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_has_what_its_role_allows() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::with(
        1,
        Layout { options: vec!["--auth-token-ttl".into(), "2".into()], ..Layout::default() },
    );
    cluster.leader().await;
    let mut raw = cluster.raw(0).await.unwrap();
    raw.user_add("root", "root-password", None).await.unwrap();
    raw.user_grant_role("root", "root").await.ok();
    raw.role_add("root").await.ok();
    raw.user_grant_role("root", "root").await.ok();
    raw.role_add("masq").await.unwrap();
    let all = etcd_client::Permission::new(PermissionType::Readwrite, "masq/").with_prefix();
    raw.role_grant_permission("masq", all).await.unwrap();
    raw.user_add("h1", "secret", None).await.unwrap();
    raw.user_grant_role("h1", "masq").await.unwrap();
    raw.auth_enable().await.unwrap();

    let user = |name: &str, password: &str| {
        let file = dir.path().join(password.trim());
        std::fs::write(&file, password).unwrap();
        let files = EtcdFiles { user: Some(name.into()), password_file: Some(file), ..EtcdFiles::default() };
        open(cluster.config(LONG), files).unwrap()
    };
    let store = user("h1", "secret\n");
    store.put("masq/v1/endpoint/a", b"{}".to_vec()).await.unwrap();
    let mut watch = store.watch("masq/", store.list("masq/").await.unwrap().revision).await.unwrap();
    let elsewhere = store.get("other/key").await;
    assert!(
        matches!(&elsewhere, Err(StoreError::Failed(e)) if e.contains("permission denied")),
        "{elsewhere:?}"
    );
    let wrong = user("h1", "guess").get("masq/v1/vnic/a").await;
    assert!(
        matches!(&wrong, Err(StoreError::Failed(e)) if e.contains("invalid user ID or password")),
        "{wrong:?}"
    );
    let nobody = cluster.config(LONG);
    let nobody = Etcd::open(nobody).unwrap().get("masq/v1/vnic/a").await;
    assert!(matches!(&nobody, Err(StoreError::Failed(e)) if e.contains("user name is empty")), "{nobody:?}");
    // Tokens end; roles change and make them old.
    tokio::time::sleep(Duration::from_secs(4)).await;
    store.put("masq/v1/vnic/b", b"{}".to_vec()).await.unwrap();
    let root = etcd_client::ConnectOptions::new().with_user("root", "root-password");
    let mut root = etcd_client::Client::connect([cluster.url(0)], Some(root)).await.unwrap();
    root.role_add("another").await.unwrap();
    store.put("masq/v1/vnic/c", b"{}".to_vec()).await.unwrap();
    for name in ["b", "c"] {
        let put = Change::Put { key: format!("masq/v1/vnic/{name}"), value: b"{}".to_vec() };
        assert_eq!(watch.next().await.unwrap().changes, [put]);
    }
}
