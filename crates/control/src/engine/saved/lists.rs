//! Access lists in the state file. They may be long, and the document is written each second: so they are parts of the file, and a
//! change writes the parts anew that are others.
//!
//! ```text
//! document -> directory: everything of the access lists but sets and rules -> pieces of sets and of rules
//! ```

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use api::v1::{AccessListSpec, AccessModel, Group, Named, Piece, SegmentDefault, Shared};
use channel::state::{Part, Place, StateFile};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Bytes that nobody needs any more, besides half as many as there are of others: with more, the parts are written anew.
const WASTE: u64 = 1 << 20;

/// What the document names.
#[derive(Serialize, Deserialize)]
struct Directory {
    address_sets: Vec<Part>,
    groups: Vec<Group>,
    defaults: Vec<SegmentDefault>,
    /// Lists without their rules, and those.
    lists: Vec<(AccessListSpec, Vec<Part>)>,
}

/// Pieces that are in the file, by their addresses, which are theirs as long as they are in here.
type Pieces = HashMap<usize, (Arc<dyn Any + Send + Sync>, Part)>;

/// Pieces as the file will have them, by their addresses: to write many of them as JSON takes time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written(HashMap<usize, (Arc<dyn Any + Send + Sync>, Vec<u8>)>);

/// What is in the file as of its last document.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    access: Arc<AccessModel>,
    directory: Option<Part>,
    pieces: Pieces,
    place: Place,
}

/// Writes what is not in the file yet.
struct Writer<'a> {
    file: &'a StateFile,
    old: &'a Pieces,
    ahead: &'a Written,
    /// Nothing stays where it was.
    anew: bool,
    pieces: Pieces,
    place: Place,
}

impl Lists {
    /// Reads what a document names.
    ///
    /// # Errors
    /// It makes no sense.
    pub(super) fn load(file: &StateFile, directory: Part) -> io::Result<Self> {
        let mut pieces = Pieces::new();
        let found: Directory = read(file, directory)?;
        let mut lists = Vec::with_capacity(found.lists.len());
        for (list, rules) in found.lists {
            let rules = read_all(file, rules, &mut pieces)?;
            lists.push(AccessListSpec { rules, ..list });
        }
        let access = AccessModel {
            address_sets: read_all(file, found.address_sets, &mut pieces)?,
            groups: found.groups,
            defaults: found.defaults,
            lists,
        };
        let parts = pieces.values().map(|(_, part)| *part);
        Ok(Self {
            access: Arc::new(access),
            directory: Some(directory),
            place: Place::behind(parts.chain([directory])),
            pieces,
        })
    }

    /// The access lists.
    pub(super) fn access(&self) -> &Arc<AccessModel> {
        &self.access
    }

    /// Where they are; nowhere without any.
    pub(super) fn directory(&self) -> Option<Part> {
        self.directory
    }

    /// Writes others. They are what is in the file once a document was saved that names them.
    ///
    /// # Errors
    /// They are too long ([`io::ErrorKind::FileTooLarge`]), or the system's refusal.
    pub(super) fn with(
        &self,
        access: &Arc<AccessModel>,
        ahead: &Written,
        file: &StateFile,
    ) -> io::Result<Self> {
        let (here, there) = (self.place.clone(), self.place.other_half());
        let live: u64 = self.pieces.values().map(|(_, part)| part.len()).sum();
        let writer = |place, anew| Writer {
            file,
            old: &self.pieces,
            ahead,
            anew,
            pieces: Pieces::new(),
            place,
        };
        if self.place.used() > live + live / 2 + WASTE {
            return writer(there, true).lists(access);
        }
        match writer(here, false).lists(access) {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                writer(there, true).lists(access)
            }
            lists => lists,
        }
    }
}

impl Written {
    /// The pieces of access lists that others do not have.
    ///
    /// # Errors
    /// They cannot be written as JSON.
    pub(crate) fn new(old: &AccessModel, new: &AccessModel) -> io::Result<Self> {
        let mut written = Self::default();
        written.add(&[&old.address_sets], &new.address_sets)?;
        let had: Vec<_> = old.lists.iter().map(|list| &list.rules).collect();
        for list in &new.lists {
            written.add(&had, &list.rules)?;
        }
        Ok(written)
    }

    fn add<T>(&mut self, had: &[&Shared<T>], list: &Shared<T>) -> io::Result<()>
    where
        T: Serialize + Send + Sync + 'static,
    {
        let had = had.iter().flat_map(|list| list.pieces());
        let had: HashSet<usize> = had.map(key).collect();
        for piece in list
            .pieces()
            .iter()
            .filter(|piece| !had.contains(&key(piece)))
        {
            let kept: Arc<dyn Any + Send + Sync> = Arc::clone(piece) as _;
            self.0.insert(key(piece), (kept, json(piece)?));
        }
        Ok(())
    }
}

/// What a piece is known by as long as somebody has it.
fn key<T>(piece: &Arc<Piece<T>>) -> usize {
    Arc::as_ptr(piece).addr()
}

fn json<T: Serialize>(piece: &Piece<T>) -> io::Result<Vec<u8>> {
    serde_json::to_vec(piece.elements()).map_err(io::Error::other)
}

impl Writer<'_> {
    fn lists(mut self, access: &Arc<AccessModel>) -> io::Result<Lists> {
        let directory = match access.is_empty() {
            true => None,
            false => Some(self.write(access)?),
        };
        Ok(Lists {
            access: Arc::clone(access),
            directory,
            pieces: self.pieces,
            place: self.place,
        })
    }

    fn write(&mut self, access: &AccessModel) -> io::Result<Part> {
        let mut lists = Vec::with_capacity(access.lists.len());
        for list in &access.lists {
            lists.push((list.without_rules(), self.write_all(&list.rules)?));
        }
        let directory = Directory {
            address_sets: self.write_all(&access.address_sets)?,
            groups: access.groups.clone(),
            defaults: access.defaults.clone(),
            lists,
        };
        let json = serde_json::to_vec(&directory).map_err(io::Error::other)?;
        self.file.save_part(&mut self.place, &json)
    }

    fn write_all<T>(&mut self, list: &Shared<T>) -> io::Result<Vec<Part>>
    where
        T: Serialize + Send + Sync + 'static,
    {
        let mut parts = Vec::with_capacity(list.pieces().len());
        for piece in list.pieces() {
            let key = key(piece);
            let part = match (self.old.get(&key), self.ahead.0.get(&key)) {
                (Some((_, part)), _) if !self.anew => *part,
                (Some((_, part)), _) => {
                    let json = self.file.load_part(*part)?;
                    self.file.save_part(&mut self.place, &json)?
                }
                (None, Some((_, json))) => self.file.save_part(&mut self.place, json)?,
                (None, None) => self.file.save_part(&mut self.place, &json(piece)?)?,
            };
            let kept: Arc<dyn Any + Send + Sync> = Arc::clone(piece) as _;
            self.pieces.insert(key, (kept, part));
            parts.push(part);
        }
        Ok(parts)
    }
}

fn read<T: DeserializeOwned>(file: &StateFile, part: Part) -> io::Result<T> {
    serde_json::from_slice(&file.load_part(part)?).map_err(super::senseless)
}

fn read_all<T>(file: &StateFile, parts: Vec<Part>, pieces: &mut Pieces) -> io::Result<Shared<T>>
where
    T: DeserializeOwned + Named + Send + Sync + 'static,
{
    let mut list = Shared::default();
    for part in parts {
        list.push_piece(read(file, part)?);
        if let Some(piece) = list.pieces().last() {
            let kept: Arc<dyn Any + Send + Sync> = Arc::clone(piece) as _;
            pieces.insert(key(piece), (kept, part));
        }
    }
    Ok(list)
}
