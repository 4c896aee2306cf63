use super::*;

#[test]
fn a_sleeper_is_woken_once() {
    let event = Arc::new(sys::event::create().expect("an eventfd"));
    let mut sleeper = Sleeper {
        event: Arc::clone(&event),
        interests: Vec::new(),
        set: None,
        is_called: false,
        is_woken: false,
    };
    (0..3).for_each(|_| sleeper.wake());
    let mut count = [0; 8];
    rustix::io::read(&*event, &mut count).expect("it is readable");
    assert_eq!(u64::from_ne_bytes(count), 1);
}
