//! Reboots into kernels that a plan names.

use super::*;
use crate::boot_loader::{BootError, BootLoader};
use crate::identity::Identity;
use crate::sockets::sysfs;
use ccbench_proto::scope::{Scope, Scopes};

/// An installed kernel other than the running one.
const OTHER: &str = "6.99.0-other";

type Calls = Arc<Mutex<Vec<String>>>;

struct FakeLoader(Calls);

impl BootLoader for FakeLoader {
    fn name(&self) -> &'static str {
        "grub"
    }
    fn entry(&self, release: &str) -> Result<String, BootError> {
        if release == OTHER {
            return Ok("other".into());
        }
        let (release, installed) = (release.to_owned(), vec![OTHER.to_owned()]);
        Err(BootError::NotInstalled { release, loader: "grub", installed })
    }
    fn select_once(&self, entry: Option<&str>) -> Result<(), BootError> {
        write(&self.0, format!("select {entry:?}"));
        Ok(())
    }
}

/// Returns a node that may reboot, and the calls of its boot loader and of the reboot.
fn rig() -> (Rig, Calls) {
    let calls = Calls::default();
    let requested = Arc::clone(&calls);
    let reboot = move || {
        write(&requested, "reboot".to_owned());
        Ok(())
    };
    let loader = Box::new(FakeLoader(Arc::clone(&calls)));
    let boot = Boot { loader, reboot: Box::new(reboot), begun: Mutex::default() };
    let sampler: fn() -> Box<dyn Sampler> = || Box::new(FakeSampler(VecDeque::new()));
    let (interfaces, undo) = (FakeInterfaces::default(), Undo::in_memory());
    (Rig::with_boot(Script::Good, interfaces, sampler, undo, Some(boot)), calls)
}

fn plan(release: &str) -> String {
    PLAN.replace("[nodes.one]", &format!("[nodes.one]\nkernel_release = \"{release}\""))
}

fn into(kernel_release: &str) -> wire::RebootRequest {
    let kernel_release = kernel_release.to_owned();
    wire::RebootRequest { run_id: "r".into(), kernel_release, ..Default::default() }
}

#[tokio::test]
async fn a_reboot_selects_the_kernel_first() {
    let (rig, calls) = rig();
    let reply = rig.handle.reboot(into(OTHER), None).await.unwrap();
    assert_eq!((reply.boot_loader.as_str(), reply.entry.as_str()), ("grub", "other"));
    assert_eq!(*calls.lock().unwrap(), ["select Some(\"other\")", "reboot"]);
}

#[tokio::test]
async fn a_reboot_is_refused_without_a_kernel_a_free_node_or_the_right_boot() {
    let (rig, calls) = rig();
    let refusal = async |request: wire::RebootRequest| {
        rig.handle.reboot(request, None).await.map(drop).map_err(|error| error.to_string())
    };
    let not_installed = refusal(into("5.10")).await.unwrap_err();
    assert!(not_installed.contains("has entries for 6.99.0-other"), "{not_installed}");
    assert!(refusal(into("")).await.unwrap_err().starts_with("kernel_release: it is empty"));
    let other_boot = wire::RebootRequest { boot_id: Some("another".into()), ..into(OTHER) };
    assert!(refusal(other_boot).await.unwrap_err().contains("has been rebooted meanwhile"));
    let stale = wire::RebootRequest { generation: Some(7), ..into(OTHER) };
    assert!(refusal(stale).await.unwrap_err().contains("another controller has used this node"));
    rig.prepare().await.unwrap();
    assert!(refusal(into(OTHER)).await.unwrap_err().contains("this node is busy"));
    assert!(calls.lock().unwrap().is_empty(), "nothing was selected");
}

#[tokio::test]
async fn a_trial_begins_only_on_the_kernel_that_its_plan_names() {
    let (rig, _) = rig();
    let request =
        |release: &str| wire::PrepareRequest { plan_toml: plan(release), ..rig.request() };
    let error = rig.handle.prepare(request(OTHER), None).await.unwrap_err().to_string();
    assert!(error.contains("names kernel 6.99.0-other") && error.contains(&sysfs::release()));
    let of_earlier_boot =
        wire::PrepareRequest { boot_id: Some("another".into()), ..request(OTHER) };
    let error = rig.handle.prepare(of_earlier_boot, None).await.unwrap_err().to_string();
    assert!(error.contains("has been rebooted meanwhile"), "it is booted again: {error}");
    assert_eq!(rig.handle.status().generation, 0);
    rig.handle.prepare(request(&sysfs::release()), None).await.expect("the kernel that runs");
}

#[tokio::test]
async fn a_check_says_whether_the_kernel_can_be_booted() {
    let (rig, calls) = rig();
    let check = async |release: &str, scopes: &[Scope]| {
        let scopes: Scopes = scopes.iter().copied().collect();
        let client =
            Identity { name: "alice".into(), serial: "4a".into(), scopes, ..Identity::local("") };
        let (_end, connection) = ConnectionHandle::example_of(client);
        let request = wire::PrepareRequest { plan_toml: plan(release), ..rig.request() };
        rig.handle.check(request, Some(connection)).await.map_err(|error| error.to_string())
    };
    let error = check(OTHER, &[Scope::Run]).await.unwrap_err();
    assert!(error.contains("scope `reboot`") && error.contains("--scope run,reboot`"), "{error}");
    assert_eq!(check(OTHER, &[Scope::Run, Scope::Reboot]).await, Ok(()));
    assert_eq!(check(&sysfs::release(), &[Scope::Run]).await, Ok(()), "it runs already");
    let error = check("5.10", &[Scope::Run, Scope::Reboot]).await.unwrap_err();
    assert!(error.contains("kernel 5.10 is not installed"), "{error}");
    assert!(calls.lock().unwrap().is_empty(), "nothing was selected");
}
