//! A table of translations in its plainest form, which tests and fuzzers compare with the real one:
//! all messages in their order, which are searched for each page.

use std::ops::Range;

use super::access::PAGE;
use super::block::Class;
use super::{Access, Hit, Iotlb, Miss, Update, file};

/// All that messages have granted and not revoked. The table may have less at any time, because it
/// is a cache, and never more.
#[derive(Debug, Default)]
pub struct Oracle(Vec<Event>);

#[derive(Debug)]
enum Event {
    /// Pages that lead to guest-physical ones from `frame` on. Without an access, the message has
    /// only replaced what led elsewhere.
    Granted {
        pages: Range<u64>,
        frame: u64,
        access: Option<Access>,
    },
    Revoked(Range<u64>),
}

impl Oracle {
    /// Notes a valid UPDATE whose memory begins at `gpa`, as the answer to `asked` if there is one.
    pub fn update(&mut self, update: &Update, gpa: u64, asked: Option<Miss>) {
        let first = update.iova / PAGE;
        let pages = first..first + update.size / PAGE;
        let access = Access::from_bits(update.permission.into());
        let asked = asked.filter(|miss| pages.contains(&(miss.iova() / PAGE)));
        let asked = asked.map_or(Access::READ_WRITE, Miss::access);
        self.0.push(Event::Granted {
            pages,
            frame: gpa / PAGE,
            access: access.and_then(|access| access.common(asked)),
        });
    }

    /// Notes an INVALIDATE.
    pub fn invalidate(&mut self, iova: u64, size: u64) {
        let last = iova.saturating_add(size.saturating_sub(1)) / PAGE;
        if iova < PAGE && last == u64::MAX / PAGE {
            return self.clear();
        }
        self.0.push(Event::Revoked(iova / PAGE..last + 1));
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the guest-physical page of an I/O virtual page, and the access to it.
    #[must_use]
    pub fn granted(&self, page: u64) -> Option<(u64, Access)> {
        let mut found: Option<(u64, Option<Access>)> = None;
        for event in self.0.iter().rev() {
            match event {
                Event::Revoked(pages) if pages.contains(&page) => break,
                Event::Granted {
                    pages,
                    frame,
                    access,
                } if pages.contains(&page) => {
                    let frame = frame + (page - pages.start);
                    let (first, all) = found.get_or_insert((frame, None));
                    if *first != frame {
                        break;
                    }
                    *all = access.map_or(*all, |access| {
                        Some(all.map_or(access, |all| all.with(access)))
                    });
                }
                Event::Revoked(_) | Event::Granted { .. } => {}
            }
        }
        found.and_then(|(frame, access)| Some((frame, access?)))
    }

    /// Checks what a table has for these pages.
    ///
    /// # Panics
    /// When it has something that was not granted.
    pub fn check(&self, table: &Iotlb, pages: impl IntoIterator<Item = u64>) {
        for page in pages {
            for access in [Access::READ, Access::WRITE, Access::READ_WRITE] {
                if let Some(hit) = table.look_up(page * PAGE + 9, access) {
                    self.check_hit(hit, page, access);
                }
            }
        }
    }

    /// Checks a hit of the tenth byte of a page, and the rest of its block.
    fn check_hit(&self, hit: Hit, page: u64, access: Access) {
        let (frame, _) = self
            .granted(page)
            .unwrap_or_else(|| panic!("page {page:#x} is revoked"));
        assert_eq!(hit.gpa, frame * PAGE + 9, "page {page:#x}");
        let before = hit.offset / PAGE;
        let behind = (hit.offset + hit.len - 1) / PAGE;
        assert_eq!(before, page % (behind + 1), "a block is aligned");
        let some = (0..behind).step_by((behind as usize / 8).max(1));
        for at in some.chain([behind]) {
            let of_block = self.granted(page - before + at);
            let (there, given) =
                of_block.unwrap_or_else(|| panic!("page {at} of the block of {page:#x}"));
            assert_eq!(
                there,
                frame - before + at,
                "page {at} of the block of {page:#x}"
            );
            assert!(
                given.includes(access),
                "page {page:#x}: {access:?} of {given:?}"
            );
        }
    }

    /// Checks that the page that a message was an answer to is there behind it, with the access
    /// that both name. `gpa` as in [`Oracle::update`].
    ///
    /// # Panics
    /// When it is not.
    pub fn check_answer(table: &Iotlb, update: &Update, gpa: u64, asked: Option<Miss>) {
        let Some(given) = Access::from_bits(update.permission.into()) else {
            return;
        };
        let inside = |miss: &Miss| miss.iova().wrapping_sub(update.iova) < update.size;
        let asked = asked.filter(inside);
        let asked = asked.unwrap_or(Miss::new(update.iova, given));
        if let Some(access) = asked.access().common(given) {
            let gpa = gpa + (asked.iova() - update.iova);
            let hit = table.look_up(asked.iova(), access);
            assert_eq!(hit.map(|hit| hit.gpa), Some(gpa), "{asked:?} {update:x?}");
        }
    }
}

/// Returns pages that belong to one set of a table, which displace each other. Only groups of 512
/// neighbours whose sets are near that of page 0 are searched.
pub fn same_set() -> impl Iterator<Item = u64> {
    let set_of = |page| file::set_of(Class::Small, page);
    let set = set_of(0);
    let groups = (0..).step_by(512);
    let groups = groups.filter(move |first| set_of(*first) / 512 == set / 512);
    let pages = groups.flat_map(|first| first..first + 512);
    pages.filter(move |page| set_of(*page) == set)
}
