//! The header parser: offsets lie within what was given, nothing is made of bytes that are not
//! there, and the flow key says what was parsed.

use policy::frame_class::{Neighbour, classify, is_ordinary};
use policy::neighbour_request::{self, NeighbourRequest};
use wire::flow::{Ct, FlowKey, FlowMask, KeyState, PLAIN_HEAD, PlainHead, PlainMask};
use wire::packet::{Fragment, L3, ParsedHeaders};
use wire::vlan::{HeaderBuf, VlanTci};
use wire::{EtherType, FrameClass, MacAddr, SNAPSHOT, arp, ethernet, icmp, ipv4, ipv6, tcp, udp};

/// Two bytes of frame length, then the frame's first bytes.
pub fn run(data: &[u8]) {
    let Some((len, headers)) = data.split_first_chunk::<2>() else {
        return;
    };
    let frame_len = usize::from(u16::from_le_bytes(*len));
    let parsed = ParsedHeaders::parse(headers, frame_len);
    check(&parsed, headers.len().min(frame_len), frame_len);
    check_key(&parsed);
    if usize::from(parsed.header_len) <= headers.len() {
        check_cut(&parsed, headers, frame_len);
    }
    frame_class(headers, frame_len);
    plain(&headers[..headers.len().min(frame_len)], *len);
    views(headers);
    tags(headers);
}

/// Frame classes: the quick check agrees with the full one, and both recognise neighbour discovery.
fn frame_class(headers: &[u8], frame_len: usize) {
    let frame_class = classify(headers, frame_len);
    if ParsedHeaders::parse(headers, frame_len).l3 == L3::Hidden {
        assert_eq!(frame_class, FrameClass::Unparseable);
    }
    if is_ordinary(headers) {
        assert_eq!(frame_class, FrameClass::Ordinary);
    }
    let said = Neighbour::in_frame(headers, frame_len);
    let discovery = said.is_some_and(|said| said.target.is_some());
    assert_eq!(discovery, frame_class == FrameClass::Neighbour);
    if let Some(request) = NeighbourRequest::in_frame(headers, frame_len) {
        assert!(matches!(
            frame_class,
            FrameClass::Neighbour | FrameClass::NeighbourRequest
        ));
        let reply = request.reply(MacAddr([2; 6]));
        assert!(reply.len() <= neighbour_request::MAX);
        assert_eq!(NeighbourRequest::in_frame(&reply, reply.len()), None);
    }
    assert_eq!(
        FlowKey::default()
            .with_frame_class(frame_class)
            .frame_class(),
        frame_class
    );
}

/// The short way to the keys of plain packets gives what is parsed, and so does the comparison with
/// a packet that differs in a byte.
fn plain(frame: &[u8], [at, value]: [u8; 2]) {
    let key = |frame: &[u8]| {
        let headers = &frame[..frame.len().min(SNAPSHOT)];
        FlowKey::new(7, &ParsedHeaders::parse(headers, frame.len()))
    };
    let head = |frame: &[u8]| frame[..frame.len().min(64)].to_vec();
    let Some(quick) = FlowKey::of_plain_ipv4(7, &head(frame), frame.len()) else {
        return;
    };
    assert_eq!(quick, key(frame));
    let mut other = frame.to_vec();
    let at = usize::from(at) % other.len();
    other[at] = value;
    let (Some(one), Some(two)) = (frame.first_chunk(), other.first_chunk()) else {
        return;
    };
    let addresses = FlowMask::ETHERNET.with_dst_ip().with_src_ip();
    for mask in [FlowMask::ETHERNET, addresses, FlowMask::EXACT] {
        let alike = PlainHead::new(&PlainMask::new(&mask), one);
        let same = alike.mask.iter().enumerate().all(|(word, mask)| {
            let of = |head: &[u8; PLAIN_HEAD]| u64::from_le_bytes(head.as_chunks().0[word]);
            (of(one) ^ of(two)) & mask == 0
        });
        if same && alike.fits(two, other.len()) {
            assert_eq!(key(&other).masked(&mask), quick.masked(&mask));
        }
    }
}

/// Offsets and lengths within the frame, and within each other.
pub(crate) fn check(p: &ParsedHeaders, given: usize, frame_len: usize) {
    assert!(usize::from(p.header_len) <= given);
    if !p.has_ethernet() {
        assert_eq!(p.l3, L3::Malformed);
        assert_eq!(
            *p,
            ParsedHeaders {
                l3: L3::Malformed,
                ..ParsedHeaders::default()
            }
        );
        return;
    }
    assert!(p.l3_offset == 14 || p.l3_offset == 18);
    assert_eq!(p.l3_offset == 18, p.vlan.is_some());
    assert!(p.l3_end as usize <= frame_len && p.l3_end >= u32::from(p.l3_offset));
    let ip = matches!(p.l3, L3::V4 { .. } | L3::V6 { .. });
    match p.l4_offset {
        Some(at) => {
            assert!(ip && p.fragment != Fragment::Later);
            assert!(at > p.l3_offset && at <= p.header_len);
            assert!(u32::from(p.header_len) <= p.l3_end);
            assert_eq!(p.l4_len(), Some(p.l3_end - u32::from(at)));
        }
        None => {
            assert_eq!((p.src_port, p.dst_port, p.l4_flags), (0, 0, 0));
            assert_eq!((p.l4_len(), p.checksum_offset()), (None, None));
        }
    }
    if let Some(at) = p.checksum_offset() {
        assert!(at + 2 <= p.header_len && Some(at) > p.l4_offset);
    }
    let extension = matches!(p.l3, L3::V6 { .. }) && [0, 43, 44, 51, 60].contains(&p.l4_proto);
    let untold = p.fragment != Fragment::Later || extension;
    assert_eq!(p.l4_unknown(), ip && p.l4_offset.is_none() && untold);
    if !ip {
        assert!(p.pseudo_header(7).is_none());
    }
}

fn check_key(p: &ParsedHeaders) {
    let key = FlowKey::new(0x1234, p);
    assert_eq!((key.in_port(), key.ct()), (0x1234, Ct::UNTRACKED));
    assert_eq!((key.dmac(), key.smac()), (p.dst, p.src));
    assert_eq!(key.ethertype(), p.ethertype);
    assert_eq!(key.vlan(), p.vlan.map(|tag| tag.vid));
    assert_eq!(
        (key.l4_src(), key.l4_dst(), key.l4_flags()),
        (p.src_port, p.dst_port, p.l4_flags)
    );
    let copy = FlowKey::from_words(*key.words());
    assert_eq!(copy, key);
    assert_eq!(copy.hash(9), key.hash(9));
    assert_eq!(key.masked(&FlowMask::EXACT), key);
    assert_eq!(key.masked(&FlowMask::NONE), FlowKey::default());
    let text = format!("{key:?}");
    assert!(text.len() < 1000);
    // A longer copy of the same frame must not change what its own headers say.
    let (src, dst) = (key.src_ip(), key.dst_ip());
    let network = !matches!(p.l3, L3::Other | L3::Hidden);
    assert!(network || (src, dst) == (0, 0));
    assert_eq!(key.state() == KeyState::HIDDEN, p.l3 == L3::Hidden);
}

/// The headers alone say the same as the headers with what follows them: segmentation relies on it.
fn check_cut(p: &ParsedHeaders, headers: &[u8], frame_len: usize) {
    let transport = p.l4_offset.is_some() && [tcp::PROTOCOL, udp::PROTOCOL].contains(&p.l4_proto);
    if transport && headers.len() <= SNAPSHOT {
        let cut = &headers[..usize::from(p.header_len)];
        assert_eq!(ParsedHeaders::parse(cut, frame_len), *p);
    }
}

/// Every view of every suffix that a header might start at.
fn views(bytes: &[u8]) {
    for at in (0..bytes.len().min(96)).step_by(2) {
        let bytes = &bytes[at..];
        if let Ok(v) = ethernet::EthernetView::new_checked(bytes) {
            assert_eq!(v.payload().len() + v.header_len(), bytes.len());
            let _ = (v.dst(), v.src(), v.vlan(), v.ethertype());
        }
        if let Ok(v) = ipv4::Ipv4View::new_checked(bytes) {
            assert!(
                (20..=60).contains(&v.header_len()) && usize::from(v.total_len()) >= v.header_len()
            );
            assert!(v.payload().len() <= usize::from(v.total_len()) - v.header_len());
            let _ = (v.tos(), v.id(), v.more_fragments());
            let _ = (
                v.fragment_offset(),
                v.ttl(),
                v.protocol(),
                v.checksum(),
                v.src(),
                v.dst(),
            );
        }
        if let Ok(v) = ipv6::Ipv6View::new_checked(bytes) {
            assert!(v.payload().len() <= usize::from(v.payload_len()));
            if let Ok(walk) = v.extensions() {
                assert!(walk.len <= bytes.len() && walk.len >= ipv6::HEADER_LEN);
                assert!(walk.len - ipv6::HEADER_LEN <= usize::from(v.payload_len()));
            }
            let _ = (v.traffic_class(), v.next_header(), v.src(), v.dst());
        }
        if let Ok(v) = tcp::TcpView::new_checked(bytes) {
            assert!(v.header_len() >= 20 && v.header_len() + v.payload().len() == bytes.len());
            let _ = (
                v.src_port(),
                v.dst_port(),
                v.seq(),
                v.ack(),
                v.flags(),
                v.checksum(),
            );
        }
        if let Ok(v) = udp::UdpView::new_checked(bytes) {
            assert_eq!(v.payload().len() + udp::HEADER_LEN, bytes.len());
            let _ = (v.src_port(), v.dst_port(), v.length(), v.checksum());
        }
        if let Ok(v) = icmp::IcmpView::new_checked(bytes) {
            let _ = (v.kind(), v.code(), v.checksum(), v.payload());
        }
        if let Ok(v) = arp::ArpView::new_checked(bytes) {
            let _ = (v.operation(), v.sender_mac(), v.sender_ip(), v.target_ip());
        }
    }
}

/// A tag that is put on and taken off leaves the frame as it was, and one that is on is what is
/// parsed.
fn tags(headers: &[u8]) {
    let headers = &headers[..headers.len().min(SNAPSHOT)];
    let mut buf = HeaderBuf::default();
    buf.fill(headers.len()).copy_from_slice(headers);
    let tag = VlanTci {
        pcp: 5,
        dei: true,
        vid: 77,
    };
    if buf.push_vlan(tag) {
        let parsed = ParsedHeaders::parse(buf.as_slice(), buf.len());
        assert_eq!((parsed.vlan, parsed.l3_offset), (Some(tag), 18));
        assert_eq!(buf.pop_vlan(), Some(tag));
    } else {
        assert!(headers.len() < ethernet::HEADER_LEN);
    }
    assert_eq!(buf.as_slice(), headers);
    let inner = ParsedHeaders::parse(headers, headers.len());
    if inner.has_ethernet() {
        assert_eq!(buf.vlan(), inner.vlan);
        assert_eq!(buf.pop_vlan(), inner.vlan);
        let popped = ParsedHeaders::parse(buf.as_slice(), buf.len());
        if inner.vlan.is_some() && inner.ethertype != EtherType::VLAN {
            assert_eq!(popped.ethertype, inner.ethertype);
        }
    }
}
