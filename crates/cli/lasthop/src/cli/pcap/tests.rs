use super::*;

const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Magic numbers of classic pcap, with time stamps in microseconds and nanoseconds.
const CLASSIC: [u32; 2] = [0xa1b2_c3d4, 0xa1b2_3c4d];

#[derive(Clone, Copy)]
enum Order {
    Little,
    Big,
}

/// Returns the frames of a file with their numbers, and its bad parts.
fn parts(bytes: &[u8]) -> (Vec<(u64, CapturedFrame)>, Vec<String>) {
    let mut capture = Capture::new(bytes);
    let (mut frames, mut others) = (Vec::new(), Vec::new());
    while let Some(part) = capture.next() {
        match part {
            Part::Frame(number, frame) => frames.push((number, frame)),
            Part::Bad(text) | Part::Nothing(text) => others.push(text),
        }
    }
    (frames, others)
}

/// Returns the frames of a file without bad parts.
fn all(bytes: &[u8]) -> Vec<CapturedFrame> {
    let (frames, bad) = parts(bytes);
    assert_eq!(bad, Vec::<String>::new());
    for (at, (number, _)) in frames.iter().enumerate() {
        assert_eq!(*number, at as u64 + 1);
    }
    frames.into_iter().map(|(_, frame)| frame).collect()
}

/// Numbers in either order.
struct Writer(Order, Vec<u8>);

impl Writer {
    fn word(&mut self, word: u32) -> &mut Self {
        self.1.extend(match self.0 {
            Order::Little => word.to_le_bytes(),
            Order::Big => word.to_be_bytes(),
        });
        self
    }

    fn half(&mut self, half: u16) -> &mut Self {
        self.1.extend(match self.0 {
            Order::Little => half.to_le_bytes(),
            Order::Big => half.to_be_bytes(),
        });
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.1.extend(bytes);
        self
    }

    /// A block with this body, padded.
    fn block(&mut self, kind: u32, body: &Writer) -> &mut Self {
        let padded = body.1.len().next_multiple_of(4);
        let length = padded as u32 + 12;
        self.word(kind).word(length).bytes(&body.1);
        let padding = vec![0; padded - body.1.len()];
        self.bytes(&padding).word(length)
    }
}

fn writer(order: Order) -> Writer {
    Writer(order, Vec::new())
}

fn frame(length: usize) -> Vec<u8> {
    (0..length).map(|n| n as u8).collect()
}

fn captured(bytes: &[u8], length: u32) -> CapturedFrame {
    CapturedFrame {
        headers: bytes[..bytes.len().min(HEADERS_MAX)].to_vec(),
        length,
    }
}

fn classic(order: Order, magic: u32, link: u32) -> Writer {
    let mut file = writer(order);
    file.word(magic)
        .half(2)
        .half(4)
        .word(0)
        .word(0)
        .word(65_535);
    file.word(link);
    file
}

#[test]
fn classic_files_of_both_orders_and_resolutions_are_read() {
    for (order, magic) in [
        (Order::Little, CLASSIC[0]),
        (Order::Big, CLASSIC[0]),
        (Order::Little, CLASSIC[1]),
    ] {
        let mut file = classic(order, magic, 1);
        assert_eq!(all(&file.1), [], "none");
        for length in [60, 1500] {
            file.word(1).word(2).word(length).word(length + 4);
            file.bytes(&frame(length as usize));
        }
        let expected = [captured(&frame(60), 64), captured(&frame(1500), 1504)];
        assert_eq!(all(&file.1), expected);
    }
}

/// A section with an Ethernet interface that keeps 100 bytes, another link, and some frames.
fn next_generation(order: Order) -> Writer {
    let mut file = writer(order);
    let mut head = writer(order);
    head.word(BYTE_ORDER).half(1).half(0).word(!0).word(!0);
    file.block(SHB_MAGIC, &head);
    for link in [1, 113] {
        let mut interface = writer(order);
        interface.half(link).half(0).word(100);
        // if_name
        interface.half(2).half(3).bytes(b"vm1\0").word(0);
        file.block(IDB_MAGIC, &interface);
    }
    let mut enhanced = writer(order);
    enhanced.word(0).word(5).word(6).word(70).word(90);
    enhanced.bytes(&frame(70)).bytes(&[0; 2]);
    // epb_flags
    enhanced.half(2).half(4).word(1).word(0);
    file.block(EPB_MAGIC, &enhanced);
    file.block(5, &writer(order));
    let mut simple = writer(order);
    simple.word(300).bytes(&frame(100));
    file.block(SPB_MAGIC, &simple);
    file
}

#[test]
fn next_generation_files_are_read_with_all_their_sections() {
    let mut file = next_generation(Order::Big);
    file.bytes(&next_generation(Order::Little).1);
    let section = [captured(&frame(70), 90), captured(&frame(100), 300)];
    assert_eq!(all(&file.1), [section.clone(), section].concat());
}

/// Adds a packet of this interface to a section.
fn packet(file: &mut Writer, interface: u32) {
    let mut enhanced = writer(Order::Little);
    enhanced.word(interface).word(5).word(6).word(4).word(60);
    enhanced.bytes(&frame(4));
    file.block(EPB_MAGIC, &enhanced);
}

#[test]
fn what_is_no_capture_has_a_reason() {
    let refused = |bytes: &[u8]| {
        let (frames, bad) = parts(bytes);
        assert_eq!((frames.len(), bad.len()), (0, 1), "{bad:?}");
        bad.concat()
    };
    let neither = "neither pcap nor pcapng";
    assert_eq!(refused(b""), neither);
    assert_eq!(refused(b"[switch]\nname = "), neither);
    assert_eq!(refused(b"abc"), "truncated file");
    let other = classic(Order::Little, CLASSIC[0], 113);
    assert_eq!(refused(&other.1), "link type 113 is not Ethernet");
    let mut huge = classic(Order::Little, CLASSIC[0], 1);
    huge.word(1).word(2).word(u32::MAX).word(u32::MAX);
    assert_eq!(refused(&huge.1), "block of more than 16 MiB");
}

#[test]
fn a_bad_part_costs_that_part() {
    let mut file = next_generation(Order::Little);
    packet(&mut file, 1);
    packet(&mut file, 2);
    // Its length is that of its bytes, and what is in it contradicts itself.
    let mut enhanced = writer(Order::Little);
    enhanced.word(0).word(5).word(6).word(4000).word(60);
    file.block(EPB_MAGIC, &enhanced);
    packet(&mut file, 0);
    let sound = file.1.len();
    file.word(7).word(11).word(11);
    packet(&mut file, 0);
    let (frames, bad) = parts(&file.1);
    let numbers: Vec<u64> = frames.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [1, 2, 6]);
    let expected = [
        "packet 3: link type 113 is not Ethernet",
        "packet 4: packet without an interface",
        "packet 5: malformed block",
        "malformed block: nothing is read behind packet 6",
    ];
    assert_eq!(bad, expected);
    // The last packet of a capture that was killed.
    let (frames, bad) = parts(&file.1[..sound - 1]);
    assert_eq!(frames.len(), 2);
    assert_eq!(
        bad[3..],
        ["truncated file: nothing is read behind packet 5"]
    );
}

#[test]
fn a_truncated_or_damaged_file_causes_no_panic() {
    let file = next_generation(Order::Little).1;
    let whole = all(&file);
    for end in 0..file.len() {
        let (frames, bad) = parts(&file[..end]);
        let frames: Vec<_> = frames.into_iter().map(|(_, frame)| frame).collect();
        assert!(whole.starts_with(&frames));
        assert!(bad.len() <= 1, "{bad:?}");
        assert!(end < 4 || bad.iter().all(|text| text.starts_with("truncated file")));
    }
    for at in 0..file.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut damaged = file.clone();
            damaged[at] = value;
            parts(&damaged);
        }
    }
}
