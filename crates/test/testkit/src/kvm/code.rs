//! The guest's code, assembled by hand: 16-bit real mode. Code and stacks are in segment 0, and
//! data in another, which DS leads to. AX and DX belong to the interrupt handlers, which do not
//! interrupt each other; ECX and BX belong to the main loops.
//!
//! Words that others read while the guest writes them are written by instructions with a lock.
//! Where KVM emulates the instructions, all others write byte by byte.

use super::guest::{KvmGuestConfig, Others, Task};

/// Ports that the guest writes to: an answer to the test, and a kick of the transmit queue.
pub(super) const ANSWER: u8 = 0x50;
pub(super) const KICK: u8 = 0x51;
/// The VMM does nothing about it; KVM looks for interrupts when the vCPU continues.
pub(super) const LOOK: u8 = 0x53;
/// No device is there: the write ends the vCPU.
const FAULT: u8 = 0x52;
/// Lines of the interrupt controller: frames have come, and an order.
pub(super) const FRAMES_LINE: u8 = 5;
pub(super) const ORDER_LINE: u8 = 6;
/// The vector of line 0, behind those of the CPU's exceptions.
const VECTORS: u8 = 0x20;

/// Offsets of a queue's fields in the data segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    pub(super) avail_idx: u16,
    pub(super) used_event: u16,
    pub(super) used_flags: u16,
    pub(super) used_idx: u16,
    pub(super) avail_event: u16,
}

/// Offsets of everything that the code knows in the data segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data {
    pub(super) rx: Ring,
    pub(super) tx: Ring,
    /// 32 bits each: interrupts for frames, kicks, orders that wait.
    pub(super) interrupts: u16,
    pub(super) kicks: u16,
    pub(super) orders: u16,
    /// 8 bits: not 0 once the guest has set itself up.
    pub(super) ready: u16,
}

/// The code, and the vectors of its interrupts. Addresses are in segment 0.
#[derive(Debug)]
pub(super) struct Program {
    /// The code, from the address that it was assembled for.
    pub(super) bytes: Vec<u8>,
    /// Where the first vCPU begins.
    pub(super) main: u16,
    /// Where the others begin.
    pub(super) other: u16,
    /// The interrupt vectors: all 256.
    pub(super) vectors: [u16; 256],
}

/// Assembles the code for the address `at`.
pub(super) fn assemble(at: u16, config: &KvmGuestConfig, data: &Data) -> Program {
    let mut code = Assembler { at, bytes: vec![] };
    let main = code.here();
    set_up(&mut code, data);
    match config.task {
        Task::Halt => halt(&mut code),
        Task::Work => work(&mut code),
        Task::Orders { iterations } => obey(&mut code, iterations, data),
    }
    let other = code.here();
    match config.others {
        Others::Halt => halt(&mut code),
        Others::Work => work(&mut code),
    }
    let fault = code.here();
    code.op(&[0xe6, FAULT]); // out FAULT, al
    let mut vectors = [fault; 256];
    vectors[usize::from(VECTORS + FRAMES_LINE)] = code.here();
    on_frames(&mut code, config, data);
    vectors[usize::from(VECTORS + ORDER_LINE)] = code.here();
    on_order(&mut code, config, data);
    Program {
        bytes: code.bytes,
        main,
        other,
        vectors,
    }
}

/// Starts the interrupt controller, and says that the guest is ready.
fn set_up(code: &mut Assembler, data: &Data) {
    for (port, value) in [
        (0x20, 0x11),                                  // edges, and four words
        (0x21, VECTORS),                               // the vector of line 0
        (0x21, 0x04),                                  // the second controller is at line 2
        (0x21, 0x03),                                  // interrupts end by themselves
        (0x21, !(1 << FRAMES_LINE | 1 << ORDER_LINE)), // the other lines are masked
    ] {
        code.op(&[0xb0, value]); // mov al, value
        code.op(&[0xe6, port]); // out port, al
    }
    code.to(&[0xc6, 0x06], data.ready).op(&[1]); // mov byte [ready], 1
}

/// Counts so many times for each order, and halts until there is one.
fn obey(code: &mut Assembler, iterations: u32, data: &Data) {
    let next = code.here();
    code.op(&[0xfa]); // cli
    code.to(&[0x66, 0x83, 0x3e], data.orders).op(&[0]); // cmp dword [orders], 0
    let ordered = code.ahead(&[0x75]); // jne ordered
    code.op(&[0xfb]); // sti: no interrupt comes before the next instruction is done
    code.op(&[0xf4]); // hlt
    code.back(&[0xeb], next); // jmp next
    code.land(ordered);
    code.op(&[0xfb]); // sti
    code.to(&[0xf0, 0x66, 0xff, 0x0e], data.orders); // lock dec dword [orders]
    code.op(&[0x66, 0xb9]).op(&iterations.to_le_bytes()); // mov ecx, iterations
    count(code);
    code.back(&[0xeb], next); // jmp next
}

/// Halts between interrupts.
fn halt(code: &mut Assembler) {
    code.op(&[0xfb]); // sti
    let next = code.here();
    code.op(&[0xf4]); // hlt
    code.back(&[0xeb], next); // jmp next
}

/// Counts all the time.
fn work(code: &mut Assembler) {
    code.op(&[0xfb]); // sti
    let next = code.here();
    count(code); // ECX is 0 before and after, which means 2^32
    code.back(&[0xeb], next); // jmp next
}

/// Counts ECX times, at the two words that BX leads to, the lower first. The lower word is 0 only
/// while the higher one changes. After each count the vCPU leaves KVM: one that emulates the
/// instructions does a thousand of them before it looks for interrupts.
fn count(code: &mut Assembler) {
    let next = code.here();
    code.op(&[0xe6, LOOK]); // out LOOK, al
    code.op(&[0xf0, 0x66, 0xff, 0x07]); // lock inc dword [bx]
    code.back(&[0x67, 0xe0], next); // loopne next: while --ecx and the word are not 0
    let end = code.ahead(&[0x75]); // jne end
    code.op(&[0xf0, 0x66, 0xff, 0x47, 0x04]); // lock inc dword [bx + 4]
    code.op(&[0xf0, 0x66, 0xff, 0x07]); // lock inc dword [bx]
    let end_too = code.ahead(&[0x67, 0xe3]); // jecxz end
    code.back(&[0xeb], next); // jmp next
    code.land(end);
    code.land(end_too);
}

/// Gives all used receive buffers back, then answers and replies; does nothing of it when there are
/// none: a back end may interrupt without a reason, and most do so when a queue starts.
fn on_frames(code: &mut Assembler, config: &KvmGuestConfig, data: &Data) {
    let rx = data.rx;
    code.to(&[0xf0, 0x66, 0xff, 0x06], data.interrupts); // lock inc dword [interrupts]
    let again = code.here();
    code.to(&[0xa1], rx.used_idx); // mov ax, [used.idx]
    code.op(&[0x89, 0xc2]); // mov dx, ax
    code.to(&[0x87, 0x16], rx.used_event); // xchg dx, [used_event]
    code.to(&[0x3b, 0x06], rx.used_idx); // cmp ax, [used.idx]
    code.back(&[0x75], again); // jne again
    code.op(&[0xfe, 0xc4]); // inc ah: all 256 buffers are available
    code.to(&[0x3b, 0x06], rx.avail_idx); // cmp ax, [avail.idx]
    let end = code.ahead(&[0x74]); // je end
    code.to(&[0x87, 0x06], rx.avail_idx); // xchg ax, [avail.idx]
    if config.answers {
        code.op(&[0xe6, ANSWER]); // out ANSWER, al
    }
    if config.replies {
        send(code, config, data);
    }
    code.land(end);
    code.op(&[0xcf]); // iret
}

/// Sends a frame, or leaves the order to the main loop.
fn on_order(code: &mut Assembler, config: &KvmGuestConfig, data: &Data) {
    if let Task::Orders { .. } = config.task {
        code.to(&[0xf0, 0x66, 0xff, 0x06], data.orders); // lock inc dword [orders]
    } else {
        send(code, config, data);
    }
    code.op(&[0xcf]); // iret
}

/// Makes the next transmit buffer available, and kicks when asked to.
fn send(code: &mut Assembler, config: &KvmGuestConfig, data: &Data) {
    let tx = data.tx;
    code.to(&[0xa1], tx.avail_idx); // mov ax, [avail.idx]
    code.to(&[0xf0, 0xff, 0x06], tx.avail_idx); // lock inc word [avail.idx]
    let end = if config.event_idx {
        code.to(&[0x3b, 0x06], tx.avail_event); // cmp ax, [avail_event]
        code.ahead(&[0x75]) // jne end
    } else {
        code.to(&[0xf6, 0x06], tx.used_flags).op(&[1]); // test byte [used.flags], 1
        code.ahead(&[0x75]) // jnz end
    };
    code.to(&[0xf0, 0x66, 0xff, 0x06], data.kicks); // lock inc dword [kicks]
    code.op(&[0xe6, KICK]); // out KICK, al
    code.land(end);
}

/// Code that grows.
struct Assembler {
    at: u16,
    bytes: Vec<u8>,
}

impl Assembler {
    /// The address of the next instruction.
    fn here(&self) -> u16 {
        self.at + self.bytes.len() as u16
    }

    /// Adds bytes.
    fn op(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend(bytes);
        self
    }

    /// Adds an operation on the word at an offset of the data segment.
    fn to(&mut self, bytes: &[u8], offset: u16) -> &mut Self {
        self.op(bytes).op(&offset.to_le_bytes())
    }

    /// Adds a jump to code that is there.
    fn back(&mut self, jump: &[u8], target: u16) {
        let distance = self.here() - target + jump.len() as u16 + 1;
        let distance = i8::try_from(-i32::from(distance)).expect("a short jump");
        self.op(jump).op(&distance.to_le_bytes());
    }

    /// Adds a jump to code that is still to come, and returns it for [`Assembler::land`].
    fn ahead(&mut self, jump: &[u8]) -> usize {
        self.op(jump).op(&[0]);
        self.bytes.len()
    }

    /// Lets a jump lead here.
    fn land(&mut self, jump: usize) {
        let distance = i8::try_from(self.bytes.len() - jump).expect("a short jump");
        self.bytes[jump - 1] = distance.cast_unsigned();
    }
}
