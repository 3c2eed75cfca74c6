//! The states of a node and the commands that each state allows: a pure state machine without a clock, the kernel or
//! gRPC. The executor consults it before each action and reports the result to it.
//!
//! ```text
//!            Prepare            prepared              Run                stopped
//!   Idle ──────────────▶ Preparing ──────▶ Prepared ──────▶ Running ──────────▶ Ended
//!     ▲                      │ failed          │ lease          │ controller lost  │ Reset, lease
//!     └──────────────────────┴─────────────────┴────────────────┴──────────────────┘
//! ```

use std::fmt;

/// The trial that holds the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The run's identifier.
    pub run_id: String,
    /// Which point of the plan.
    pub point_id: u32,
    /// Which repetition.
    pub trial: u32,
    /// The trial's number within its run.
    pub epoch: u64,
    /// The connection that prepares it, if it came over one.
    pub connection: Option<u64>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "run {} (point {}, trial {}, epoch {})",
            self.run_id, self.point_id, self.trial, self.epoch
        )
    }
}

impl Holder {
    fn may_be_reset_by(&self, run_id: &str, epoch: u64) -> bool {
        run_id.is_empty() || (run_id == self.run_id && epoch >= self.epoch)
    }
}

/// The state of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum State {
    /// No trial.
    #[default]
    Idle,
    /// A Prepare is in progress.
    Preparing(Holder),
    /// Ready, until the lease ends.
    Prepared(Holder),
    /// A trial is running.
    Running(Holder),
    /// The trial is over and everything is still in place.
    Ended(Holder),
}

impl State {
    /// Returns the trial that holds the node.
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Self::Idle => None,
            Self::Preparing(holder)
            | Self::Prepared(holder)
            | Self::Running(holder)
            | Self::Ended(holder) => Some(holder),
        }
    }
}

/// A command of a controller, or the result of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Prepare a trial.
    Prepare {
        /// The trial.
        holder: Holder,
        /// The node's generation as its controller knows it; `None` skips the check for other controllers.
        generation: Option<u64>,
        /// The node's boot as its controller knows it; `None` skips the check.
        boot_id: Option<String>,
    },
    /// The action `Prepare` ended.
    PrepareDone {
        /// Whether it succeeded.
        ok: bool,
    },
    /// Start the prepared trial.
    Run {
        /// The epoch of the trial to start.
        epoch: u64,
        /// The connection of the request.
        connection: Option<u64>,
    },
    /// The trial ended.
    RunDone,
    /// The lease ran out, or the controller is gone.
    Lost,
    /// Restore the node's state.
    Reset {
        /// The requesting run; empty means any.
        run_id: String,
        /// The epoch of the requesting trial.
        epoch: u64,
    },
}

/// What the executor does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    None,
    /// Make ready, then report `PrepareDone`.
    Prepare,
    /// Start, then report `RunDone`.
    Run,
    /// Undo everything.
    Undo,
}

/// Why a command was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another run holds the node.
    #[error(
        "this node is busy: {holder} is {state}; wait for its end, or if its controller is gone, restart the node's agent \
         (`systemctl try-restart ccbench-agent ccbench-agent-worker`), which undoes the changes"
    )]
    Busy {
        /// The trial that holds it.
        holder: Holder,
        /// The state of that trial, in words.
        state: &'static str,
    },
    /// A command of a controller that another one has replaced on this node.
    #[error(
        "another controller has used this node meanwhile (generation {actual}, not {given}); run `--resume` when it is done"
    )]
    Stale {
        /// The generation in the request.
        given: u64,
        /// The node's generation.
        actual: u64,
    },
    /// A command of a controller that described the node before a reboot.
    #[error("this node has been rebooted meanwhile (boot {actual}, not {given})")]
    Rebooted {
        /// The boot in the request.
        given: String,
        /// The node's boot.
        actual: String,
    },
    /// A Run without a Prepare.
    #[error(
        "nothing is prepared on this node (its lease may have ended, or another client has reset it); Prepare first"
    )]
    NotPrepared,
    /// A Run of a trial other than the prepared one.
    #[error("this node has prepared {holder}, not epoch {given}")]
    OtherTrial {
        /// The epoch in the request.
        given: u64,
        /// The prepared trial.
        holder: Holder,
    },
    /// A Run over a connection other than the one that prepared the trial.
    #[error(
        "{holder} was prepared over another connection, and only that one may start it; wait for its end, or Prepare \
         a trial of your own"
    )]
    OtherConnection {
        /// The prepared trial.
        holder: Holder,
    },
    /// A Reset of another run's trial.
    #[error(
        "this node is held by {holder}, not by run {run_id} (epoch {epoch}); wait for its end, or if its controller is gone, restart the \
         node's agent (`systemctl try-restart ccbench-agent ccbench-agent-worker`), which undoes the changes"
    )]
    NotYours {
        /// The run in the request.
        run_id: String,
        /// The epoch in the request.
        epoch: u64,
        /// The trial that holds the node.
        holder: Holder,
    },
}

/// The node's state and its fencing token.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeSession {
    /// The current state.
    pub state: State,
    /// Number of Prepares accepted.
    pub generation: u64,
    /// Identifies the machine's boot; empty if unknown.
    pub boot_id: String,
}

impl NodeSession {
    /// Returns the session after `command`, and what to do. Reports that no longer apply (the end of a trial that was
    /// reset) change nothing.
    ///
    /// # Errors
    /// The command is refused; the session stays as it was.
    pub fn on(self, command: Command) -> Result<(Self, Action), Refused> {
        let Self { state, generation, boot_id } = self;
        let session = |state, generation| Self { state, generation, boot_id: boot_id.clone() };
        let go = |state, action| Ok((session(state, generation), action));
        match (state, command) {
            // Checked before the generation, which a reboot may have reset.
            (State::Idle, Command::Prepare { boot_id: Some(given), .. })
                if given != boot_id && !boot_id.is_empty() =>
            {
                Err(Refused::Rebooted { given, actual: boot_id })
            }
            (State::Idle, Command::Prepare { generation: Some(given), .. })
                if given != generation =>
            {
                Err(Refused::Stale { given, actual: generation })
            }
            (State::Idle, Command::Prepare { holder, .. }) => {
                Ok((session(State::Preparing(holder), generation + 1), Action::Prepare))
            }
            (state, Command::Prepare { .. }) => Err(busy(state)),
            (State::Preparing(holder), Command::PrepareDone { ok: true }) => {
                go(State::Prepared(holder), Action::None)
            }
            (State::Preparing(_), Command::PrepareDone { ok: false }) => {
                go(State::Idle, Action::Undo)
            }
            (State::Prepared(holder), Command::Run { epoch, .. }) if holder.epoch != epoch => {
                Err(Refused::OtherTrial { given: epoch, holder })
            }
            // Rows and captures go only to the connection that prepared the trial.
            (State::Prepared(holder), Command::Run { connection, .. })
                if holder.connection != connection =>
            {
                Err(Refused::OtherConnection { holder })
            }
            (State::Prepared(holder), Command::Run { .. }) => {
                go(State::Running(holder), Action::Run)
            }
            (State::Idle, Command::Run { .. }) => Err(Refused::NotPrepared),
            (state, Command::Run { .. }) => Err(busy(state)),
            (State::Running(holder), Command::RunDone) => go(State::Ended(holder), Action::None),
            (state, Command::Reset { run_id, epoch }) => match state.holder() {
                Some(holder) if !holder.may_be_reset_by(&run_id, epoch) => {
                    Err(Refused::NotYours { run_id, epoch, holder: holder.clone() })
                }
                _ => go(State::Idle, Action::Undo),
            },
            (State::Idle, Command::Lost) => go(State::Idle, Action::None),
            (_, Command::Lost) => go(State::Idle, Action::Undo),
            (state, Command::PrepareDone { .. } | Command::RunDone) => go(state, Action::None),
        }
    }
}

fn busy(state: State) -> Refused {
    match state {
        State::Idle => Refused::NotPrepared,
        State::Preparing(holder) => Refused::Busy { holder, state: "being prepared" },
        State::Prepared(holder) => Refused::Busy { holder, state: "prepared" },
        State::Running(holder) => Refused::Busy { holder, state: "running" },
        State::Ended(holder) => Refused::Busy { holder, state: "over but not reset" },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn holder(epoch: u64) -> Holder {
        Holder { run_id: "r".into(), point_id: 1, trial: 2, epoch, connection: Some(1) }
    }

    fn run(epoch: u64) -> Command {
        Command::Run { epoch, connection: Some(1) }
    }

    fn prepare(epoch: u64, generation: Option<u64>) -> Command {
        Command::Prepare { holder: holder(epoch), generation, boot_id: None }
    }

    fn prepared(epoch: u64) -> NodeSession {
        let (session, action) = NodeSession::default().on(prepare(epoch, Some(0))).expect("idle");
        assert_eq!(action, Action::Prepare);
        session.on(Command::PrepareDone { ok: true }).expect("report").0
    }

    #[test]
    fn a_held_node_says_which_command_frees_it() {
        let busy = prepared(5).on(prepare(6, None)).expect_err("another trial");
        let other = prepared(5).on(reset("other", 0)).expect_err("not its trial");
        for refused in [busy, other] {
            let text = refused.to_string();
            assert!(
                text.contains("systemctl try-restart ccbench-agent ccbench-agent-worker"),
                "{text}"
            );
            assert!(!text.contains("Reset"), "{text}");
        }
    }

    #[test]
    fn a_trial_goes_through_all_states() {
        let (running, action) = prepared(5).on(run(5)).expect("prepared");
        assert_eq!(action, Action::Run);
        let (ended, action) = running.on(Command::RunDone).expect("report");
        assert_eq!(action, Action::None);
        let (idle, action) = ended.on(reset("r", 5)).expect("always");
        assert_eq!((idle.state, action), (State::Idle, Action::Undo));
    }

    #[test]
    fn a_busy_node_names_its_holder() {
        let error = prepared(5).on(prepare(6, Some(1))).expect_err("busy").to_string();
        assert!(error.contains("run r (point 1, trial 2, epoch 5) is prepared"), "{error}");
    }

    #[test]
    fn an_overtaken_controller_is_refused_even_when_idle() {
        let (idle, _) = prepared(5).on(reset("r", 5)).expect("always");
        for given in [0, 2, u64::MAX] {
            let refused = idle.clone().on(prepare(6, Some(given)));
            assert_eq!(refused, Err(Refused::Stale { given, actual: 1 }));
        }
        for given in [Some(1), None] {
            let (session, _) = idle.clone().on(prepare(6, given)).expect("its turn");
            assert_eq!(session.generation, 2);
        }
    }

    #[test]
    fn a_controller_that_knows_an_earlier_boot_is_refused() {
        let session =
            |boot_id: &str| NodeSession { boot_id: boot_id.into(), ..NodeSession::default() };
        let prepare = |given: Option<&str>| {
            let boot_id = given.map(str::to_owned);
            // The generation is also from the earlier boot: after a reboot it may count from 0 again.
            let generation = given.map(|_| if given == Some("b1") { 7 } else { 0 });
            Command::Prepare { holder: holder(5), generation, boot_id }
        };
        let refused = session("b2").on(prepare(Some("b1")));
        let expected = Refused::Rebooted { given: "b1".into(), actual: "b2".into() };
        assert_eq!(refused, Err(expected), "not the generation");
        for (own, given) in [("b2", Some("b2")), ("b2", None), ("", Some("b2"))] {
            let (prepared, _) = session(own).on(prepare(given)).expect("its boot");
            assert_eq!((prepared.generation, prepared.boot_id.as_str()), (1, own));
        }
    }

    #[test]
    fn no_number_of_a_controller_locks_others_out() {
        let (idle, _) = prepared(u64::MAX).on(reset("r", u64::MAX)).expect("always");
        assert!(idle.on(prepare(1, Some(1))).is_ok());
    }

    #[test]
    fn a_run_needs_its_own_prepare() {
        assert_eq!(NodeSession::default().on(run(1)), Err(Refused::NotPrepared));
        assert!(matches!(prepared(5).on(run(6)), Err(Refused::OtherTrial { given: 6, .. })));
    }

    #[test]
    fn a_run_needs_the_connection_that_prepared() {
        for connection in [Some(2), None] {
            let refused = prepared(5).on(Command::Run { epoch: 5, connection }).expect_err("other");
            assert_eq!(refused, Refused::OtherConnection { holder: holder(5) });
        }
        assert!(prepared(5).on(run(5)).is_ok(), "it is still prepared");
    }

    fn reset(run_id: &str, epoch: u64) -> Command {
        Command::Reset { run_id: run_id.into(), epoch }
    }

    #[test]
    fn only_its_own_run_resets_a_trial() {
        let states = [
            prepared(5),
            prepared(5).on(run(5)).expect("prepared").0,
            NodeSession::default().on(prepare(5, None)).expect("idle").0,
        ];
        for held in states {
            for (run_id, epoch) in [("other", 9), ("r", 4)] {
                let refused = held.clone().on(reset(run_id, epoch)).expect_err("not its own");
                let message = refused.to_string();
                assert!(message.contains("run r (point 1, trial 2, epoch 5)"), "{message}");
            }
            for (run_id, epoch) in [("r", 5), ("r", 6), ("", 0)] {
                let (idle, action) = held.clone().on(reset(run_id, epoch)).expect("its own");
                assert_eq!((idle.state, action), (State::Idle, Action::Undo));
            }
        }
    }

    #[test]
    fn anybody_resets_an_idle_node() {
        let (idle, _) = prepared(5).on(reset("r", 5)).expect("its own");
        for (run_id, epoch) in [("other", 1), ("r", 1), ("", 0)] {
            assert!(idle.clone().on(reset(run_id, epoch)).is_ok(), "{run_id} {epoch}");
        }
    }

    #[test]
    fn a_failed_prepare_is_undone() {
        let (session, _) = NodeSession::default().on(prepare(1, None)).expect("idle");
        let (session, action) = session.on(Command::PrepareDone { ok: false }).expect("report");
        assert_eq!((session.state, action), (State::Idle, Action::Undo));
    }

    #[test]
    fn a_late_report_changes_nothing() {
        let (idle, action) = NodeSession::default().on(Command::RunDone).expect("report");
        assert_eq!((idle.state, action), (State::Idle, Action::None));
    }

    fn command() -> impl Strategy<Value = Command> {
        prop_oneof![
            (0u64..6, prop::option::of(0u64..6)).prop_map(|(epoch, of)| prepare(epoch, of)),
            any::<bool>().prop_map(|ok| Command::PrepareDone { ok }),
            (0u64..6, prop::option::of(0u64..3))
                .prop_map(|(epoch, connection)| Command::Run { epoch, connection }),
            Just(Command::RunDone),
            Just(Command::Lost),
            (any::<bool>(), 0u64..6)
                .prop_map(|(own, epoch)| reset(if own { "r" } else { "other" }, epoch)),
            Just(reset("", 0)),
        ]
    }

    proptest! {
        #[test]
        fn every_prepare_has_its_generation_and_every_trial_is_undone(
            commands in prop::collection::vec(command(), 0..60)
        ) {
            let mut session = NodeSession::default();
            let mut dirty = false;
            for command in commands {
                let before = session.clone();
                match session.clone().on(command) {
                    Ok((after, action)) => {
                        let accepted = u64::from(action == Action::Prepare);
                        prop_assert_eq!(after.generation, before.generation + accepted);
                        match action {
                            Action::Prepare => { prop_assert!(!dirty); dirty = true; }
                            Action::Undo => dirty = false,
                            Action::Run | Action::None => {}
                        }
                        prop_assert_eq!(dirty, after.state != State::Idle);
                        session = after;
                    }
                    Err(_) => prop_assert_eq!(&before, &session),
                }
            }
        }
    }
}
