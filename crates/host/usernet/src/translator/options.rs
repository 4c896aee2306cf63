//! Options of a SYN (RFC 9293, section 3.2; RFC 7323, section 2.2).

/// The maximum segment size and the shift of windows, where they are there. What follows a length
/// that contradicts itself is not read.
pub(super) fn parse(mut options: &[u8]) -> (Option<u16>, Option<u8>) {
    let (mut mss, mut scale) = (None, None);
    loop {
        match options {
            [1, rest @ ..] => options = rest,
            [0, ..] | [] | [_] => return (mss, scale),
            [kind, len, rest @ ..] => {
                let Some(value) = usize::from(*len)
                    .checked_sub(2)
                    .and_then(|len| rest.get(..len))
                else {
                    return (mss, scale);
                };
                match (kind, value) {
                    (2, [high, low]) => mss = Some(u16::from_be_bytes([*high, *low])),
                    (3, [shift]) => scale = Some(*shift),
                    _ => {}
                }
                options = &rest[value.len()..];
            }
        }
    }
}
