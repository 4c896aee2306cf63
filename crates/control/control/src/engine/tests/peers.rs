//! Peers that misbehave, and the engine's loop.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use ipc::records::Answer;
use ipc::supervision::{EventToControl, SocketAnswer};
use policy::Action;
use testkit::stop::Stop;
use testkit::wait::wait_until;
use tokio::time::timeout;

use super::world::{World, asked, flood, key, port};
use crate::command::{EngineHandle, engine_channel};
use crate::engine::Engine;
use crate::events::Events;
use config::desired::Change;

const SOON: Duration = Duration::from_secs(60);

fn world() -> (World, Engine) {
    let mut world = World::new(vec![port("vm0", "blue"), port("vm1", "blue")]);
    let engine = world.start().unwrap();
    (world, engine)
}

/// A world with an engine whose timeout is short.
fn short_timeout_world() -> (World, Engine) {
    let mut world = World::new(vec![port("vm0", "blue"), port("vm1", "blue")]);
    world.shorten_timeout();
    let engine = world.start().unwrap();
    (world, engine)
}

/// Serves while `test` runs; returns the engine's result.
fn serve<T>(
    mut engine: Engine,
    test: impl AsyncFnOnce(EngineHandle) -> T,
) -> (std::io::Result<()>, T) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (handle, commands) = engine_channel(4, Events::default());
        let both = async { tokio::join!(engine.run(commands), test(handle.clone())) };
        timeout(SOON, both).await.expect("it ends")
    })
}

#[test]
fn a_switch_that_is_gone_ends_control() {
    let (world, engine) = world();
    let (done, ()) = serve(engine, async |_| world.hang_up_switch());
    let error = done.unwrap_err();
    assert_eq!(error.to_string(), "the switch is gone");
    wait_until("the supervisor knows why", || {
        world.supervisor().losses == 1
    });
}

#[test]
fn a_switch_that_ends_while_control_starts_is_reported_as_its_reason() {
    let mut world = World::new(vec![port("vm0", "blue")]);
    world.switch().ends = true;
    assert!(world.start().is_err());
    wait_until("the supervisor knows why", || {
        world.supervisor().losses == 1
    });
}

#[test]
fn a_switch_that_is_gone_at_the_start_is_an_error() {
    let mut world = World::new(vec![port("vm0", "blue")]);
    world.shorten_timeout();
    world.switch().stalled = true;
    let error = world.start().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(error.to_string(), "no reply from the switch");
}

#[test]
fn a_switch_that_does_not_reply_is_503_and_then_as_before() {
    let (world, mut engine) = short_timeout_world();
    world.switch().stalled = true;
    let problem = engine.status().unwrap_err();
    assert_eq!(
        (problem.status, &*problem.detail),
        (503, "no reply from the switch")
    );
    world.switch().stalled = false;
    assert_eq!(engine.status().unwrap().ports.len(), 2);
}

#[test]
fn a_command_without_a_reply_makes_control_restart() {
    // Whether the switch has executed it is unknown; only a successor can find out.
    let (world, engine) = short_timeout_world();
    let (done, problem) = serve(engine, async |handle| {
        world.switch().stalled = true;
        let change = Change::AddPort(Box::new(port("vm2", "blue")));
        handle.change(asked(change)).await.unwrap_err()
    });
    assert_eq!(problem.status, 503);
    assert_eq!(done.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(world.supervisor().losses, 0, "the switch is there");
}

/// Waits until something has happened in the peers' threads.
async fn until<T>(mut what: impl FnMut() -> Option<T>) -> T {
    loop {
        match what() {
            Some(happened) => return happened,
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

/// Waits for the answer to an upcall.
async fn answer_to(world: &World, id: u64) -> Answer {
    until(|| {
        let mut answers = world.answers().into_iter();
        answers.find(|a| matches!(a, Answer::Install { upcall, .. } if *upcall == Some(id)))
    })
    .await
}

fn action(answer: &Answer) -> Option<Action> {
    match answer {
        Answer::Install { action, .. } => Some(*action),
        _ => None,
    }
}

#[test]
fn upcalls_and_reads_are_answered_while_the_switch_makes_a_port() {
    let (world, engine) = world();
    world.switch().hold = Some("add");
    let (done, ()) = serve(engine, async |handle| {
        let change = handle.change(asked(Change::AddPort(Box::new(port("vm2", "blue")))));
        let meanwhile = async {
            until(|| world.switch().held.first().map(drop)).await;
            // The new port's upcall waits for the program that knows the port.
            assert!(world.send_upcall(1, key(2, 3, 255)));
            assert!(world.send_upcall(2, key(0, 1, 255)));
            assert_eq!(action(&answer_to(&world, 2).await), Some(flood(1)));
            assert_eq!(handle.ports().await.unwrap().ports.len(), 2);
            assert_eq!(world.switch().held.len(), 1, "it is not made yet");
            assert!(world.saved().desired.port("vm2").is_none());
            world.release();
            assert_eq!(action(&answer_to(&world, 1).await), Some(flood(1)));
        };
        let (changed, ()) = tokio::join!(change, meanwhile);
        assert_eq!(changed.unwrap().1.port.unwrap().name, "vm2");
        world.tell(&EventToControl::Stop);
    });
    done.unwrap();
    assert!(world.saved().desired.port("vm2").is_some());
    assert_eq!(world.cached(), ["0: 1 > 255", "2: 3 > 255"]);
}

/// The switch runs the new program already, and control does not know yet.
#[test]
fn a_decision_by_the_old_program_leaves_no_flow_under_the_new_one() {
    let (world, engine) = world();
    world.switch().hold = Some("program");
    let (done, ()) = serve(engine, async |handle| {
        let patch = serde_json::json!({"segment": "red"});
        let change = Change::SetPort("vm1".to_owned(), patch);
        let change = handle.change(asked(change));
        let meanwhile = async {
            until(|| world.switch().held.first().map(drop)).await;
            assert!(world.send_upcall(1, key(1, 2, 255)));
            assert_eq!(action(&answer_to(&world, 1).await), Some(flood(1)));
            assert_eq!(world.cached(), [""; 0], "it is of epoch 1");
            world.release();
        };
        let (changed, ()) = tokio::join!(change, meanwhile);
        changed.unwrap();
        assert!(world.send_upcall(2, key(1, 2, 255)));
        assert_eq!(action(&answer_to(&world, 2).await), Some(flood(2)));
        world.tell(&EventToControl::Stop);
    });
    done.unwrap();
    assert_eq!(world.cached(), ["1: 2 > 255"]);
}

#[test]
fn changes_are_made_one_after_the_other() {
    let (world, engine) = world();
    world.orders();
    world.switch().hold = Some("add 2");
    let (done, ()) = serve(engine, async |handle| {
        let add = |name: &str| Change::AddPort(Box::new(port(name, "blue")));
        let first = handle.change(asked(add("vm2")));
        let second = async {
            until(|| world.switch().held.first().map(drop)).await;
            handle.change(asked(add("vm3"))).await
        };
        let meanwhile = async {
            until(|| world.switch().held.first().map(drop)).await;
            handle.status().await.unwrap();
            assert_eq!(world.orders(), ["add 2 vm2"]);
            world.release();
        };
        let (first, second, ()) = tokio::join!(first, second, meanwhile);
        first.unwrap();
        second.unwrap();
        world.tell(&EventToControl::Stop);
    });
    done.unwrap();
    assert_eq!(world.orders(), ["program 2", "add 3 vm3", "program 3"]);
}

#[test]
fn a_stop_waits_for_the_change_under_way() {
    let (world, engine) = world();
    world.switch().hold = Some("add");
    let (done, ()) = serve(engine, async |handle| {
        let change = handle.change(asked(Change::AddPort(Box::new(port("vm2", "blue")))));
        let meanwhile = async {
            until(|| world.switch().held.first().map(drop)).await;
            world.tell(&EventToControl::Stop);
            assert!(world.send_upcall(1, key(0, 1, 255)));
            answer_to(&world, 1).await;
            world.release();
        };
        let (changed, ()) = tokio::join!(change, meanwhile);
        changed.unwrap();
    });
    done.unwrap();
    assert!(world.saved().desired.port("vm2").is_some());
}

#[test]
fn a_freeze_waits_for_the_change_under_way() {
    let (world, engine) = world();
    world.switch().hold = Some("add");
    let (done, ()) = serve(engine, async |handle| {
        let add = |name: &str| asked(Change::AddPort(Box::new(port(name, "blue"))));
        let change = handle.change(add("vm2"));
        let meanwhile = async {
            until(|| world.switch().held.first().map(drop)).await;
            world.tell(&EventToControl::Freeze);
            assert!(world.send_upcall(1, key(0, 1, 255)));
            answer_to(&world, 1).await;
            assert_eq!(world.supervisor().frozen, 0);
            world.release();
        };
        let (changed, ()) = tokio::join!(change, meanwhile);
        changed.unwrap();
        until(|| (world.supervisor().frozen == 1).then_some(())).await;
        assert!(world.saved().desired.port("vm2").is_some());
        assert_eq!(handle.change(add("vm3")).await.unwrap_err().status, 503);
        world.tell(&EventToControl::Stop);
    });
    done.unwrap();
}

#[test]
fn a_supervisor_that_does_not_reply_fails_a_change_and_upcalls_are_answered_meanwhile() {
    let (world, engine) = short_timeout_world();
    world.supervisor().stalled = true;
    let (done, ()) = serve(engine, async |handle| {
        let add = || asked(Change::AddPort(Box::new(port("vm2", "blue"))));
        let change = handle.change(add());
        let meanwhile = async {
            until(|| (world.supervisor().unanswered > 0).then_some(())).await;
            assert!(world.send_upcall(1, key(0, 1, 255)));
            answer_to(&world, 1).await;
            tokio::time::pause();
        };
        let (changed, ()) = tokio::join!(change, meanwhile);
        tokio::time::resume();
        let problem = changed.unwrap_err();
        assert_eq!(
            (problem.status, &*problem.detail),
            (503, "no reply from the supervisor")
        );
        world.supervisor().stalled = false;
        assert!(world.send_upcall(2, key(1, 2, 255)));
        answer_to(&world, 2).await;
        handle.change(add()).await.unwrap();
        world.tell(&EventToControl::Stop);
    });
    done.unwrap();
}

#[test]
fn without_a_supervisor_control_ends() {
    let (world, engine) = world();
    let (done, ()) = serve(engine, async |_| world.hang_up_supervisor());
    done.unwrap();
}

#[test]
fn a_supervisor_that_does_not_reply_is_503() {
    let (world, mut engine) = short_timeout_world();
    world.supervisor().stalled = true;
    let problem = engine.status().unwrap_err();
    assert_eq!(&*problem.detail, "no reply from the supervisor");
    let problem = engine.add_port(port("vm2", "blue")).unwrap_err();
    assert_eq!(problem.status, 503, "{problem}");
    assert!(world.saved().desired.port("vm2").is_none());
}

#[test]
fn stop_ends_control() {
    let (world, engine) = world();
    let (done, ()) = serve(engine, async |_| world.tell(&EventToControl::Stop));
    done.unwrap();
}

#[test]
fn a_guest_that_floods_upcalls_does_not_delay_others() {
    let (world, engine) = world();
    let end = Stop::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0u64;
            while !end.is_set() {
                let station = key(0, (n % 250) as u8, (n / 250 % 250) as u8);
                if !world.send_upcall(n, station) {
                    std::thread::yield_now();
                }
                world.answers();
                n += 1;
            }
        });
        let _end = end.at_end();
        let (done, ()) = serve(engine, async |handle| {
            until(|| (!world.saved().stations.is_empty()).then_some("it ticked")).await;
            // A flood that delays others does so every time, a busy machine now and then.
            loop {
                let started = Instant::now();
                let status = handle.status().await.unwrap();
                let is_soon = started.elapsed() < Duration::from_secs(1);
                if is_soon && status.switch.upcalls > 1000 {
                    break;
                }
            }
            world.tell(&EventToControl::Stop);
        });
        done.unwrap();
    });
}

#[test]
fn a_broken_ring_ends_control() {
    let (world, mut engine) = world();
    {
        let mut switch = world.switch();
        let (upcalls, _) = switch.rings.as_mut().unwrap();
        assert!(upcalls.send(&"not an upcall"));
    }
    assert!(engine.handle_upcalls().is_err());
}

#[test]
fn a_late_answer_of_the_supervisor_is_not_taken_for_another() {
    let (world, mut engine) = short_timeout_world();
    world.supervisor().stalled = true;
    assert!(engine.status().is_err());
    world.supervisor().stalled = false;
    world.tell(&EventToControl::Processes(Vec::new()));
    world.tell(&EventToControl::Sockets(SocketAnswer::Listening {
        path: "other.sock".parse().unwrap(),
        error: Some("too late".to_owned()),
    }));
    engine.add_port(port("vm2", "blue")).unwrap();
    assert_eq!(engine.status().unwrap().ports.len(), 3);
}

#[test]
fn a_stop_that_arrives_before_a_reply_is_handled() {
    let (world, engine) = world();
    world.tell(&EventToControl::Stop);
    let (done, _) = serve(engine, async |handle| handle.status().await);
    done.unwrap();
    let (world, mut engine) = self::world();
    world.tell(&EventToControl::Stop);
    engine.status().unwrap();
    let (done, ()) = serve(engine, async |_| ());
    done.unwrap();
}

#[test]
fn answers_that_had_no_room_do_not_wait_for_the_next_tick() {
    // Answers that wait for ticks take far longer every time, others do on a busy machine now and
    // then.
    let mut took = std::iter::repeat_with(send_many_answers).take(20);
    assert!(took.any(|took| took < Duration::from_secs(1)));
}

/// Has the engine send more answers than there is room for. Returns the time until all were read.
fn send_many_answers() -> Duration {
    let (world, mut engine) = world();
    let rules = 60_000u64;
    for n in 0..rules {
        engine.forwarding.remove_flows(::port::PortId(n as u32));
    }
    assert!(engine.forwarding.answers.queued() > 10_000);
    let (done, took) = serve(engine, async |_| {
        let started = Instant::now();
        let mut read = 0;
        while read < rules {
            read += world.answers().len() as u64;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        world.tell(&EventToControl::Stop);
        started.elapsed()
    });
    done.unwrap();
    took
}
