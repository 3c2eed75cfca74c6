//! The executor's answers to the watchdog.

use super::*;

/// Its end waits for [`RELEASED`].
struct Held;

static HOLDS: AtomicBool = AtomicBool::new(false);
static RELEASED: AtomicBool = AtomicBool::new(false);

impl Sampler for Held {
    fn start(&mut self, _: &[FlowPorts], _: u64) -> Result<(), SampleError> {
        Ok(())
    }
    fn drain(&mut self, _: u64, _: &mut Vec<wire::FlowSample>) -> Result<Drained, SampleError> {
        Ok(Drained::default())
    }
    fn stop(&mut self) {
        HOLDS.store(true, Ordering::SeqCst);
        while !RELEASED.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[tokio::test]
async fn the_watchdog_gets_no_answer_while_the_executor_works() {
    let rig = Rig::sampled(Script::Good, FakeInterfaces::default(), || Box::new(Held));
    assert!(rig.handle.pulse().ask().await, "it is idle");
    rig.prepare().await.unwrap();
    let rows = rig.run().await;
    assert!(rig.handle.pulse().ask().await, "a trial runs");
    while !HOLDS.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let asked = tokio::spawn(rig.handle.pulse().ask());
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!asked.is_finished(), "it waits for a thread");
    RELEASED.store(true, Ordering::SeqCst);
    assert!(asked.await.unwrap());
    drop(rows);
    let pulse = rig.handle.pulse();
    drop(rig);
    assert!(!pulse.ask().await, "it has ended");
}
