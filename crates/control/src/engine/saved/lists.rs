//! Access lists in the state file. They may be long, and the document is written each second: so
//! they are separate parts of the file, and a change writes only the parts that differ.
//!
//! ```text
//! document -> directory: groups, defaults, lists -> pieces: address sets, rules
//! ```

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use api::v1::{AccessListSpec, AccessModel, Group, Named, Piece, SegmentDefault, Shared};
use channel::state::{Part, Place, StateFile};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Unused bytes that are allowed beside half the size of the used ones: beyond that, all parts are
/// written again.
const WASTE: u64 = 1 << 20;

/// Contents of the part that the document refers to.
#[derive(Serialize, Deserialize)]
struct Directory {
    address_sets: Vec<Part>,
    groups: Vec<Group>,
    defaults: Vec<SegmentDefault>,
    /// Lists without their rules, and the parts with the rules.
    lists: Vec<(AccessListSpec, Vec<Part>)>,
}

/// Pieces in the file, by their addresses in memory. Holding the piece keeps its address unique.
type Pieces = HashMap<usize, (Arc<dyn Any + Send + Sync>, Part)>;

/// Encoded pieces by their addresses in memory: encoding many of them as JSON takes time.
#[derive(Clone, Debug, Default)]
pub(crate) struct EncodedPieces(HashMap<usize, (Arc<dyn Any + Send + Sync>, Vec<u8>)>);

/// Access lists of the last document in the file.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    access: Arc<AccessModel>,
    directory: Option<Part>,
    pieces: Pieces,
    place: Place,
}

/// Writes the pieces that are not in the file yet.
struct Writer<'a> {
    file: &'a StateFile,
    old: &'a Pieces,
    ahead: &'a EncodedPieces,
    /// All pieces move to the other half of the file.
    anew: bool,
    pieces: Pieces,
    place: Place,
}

impl Lists {
    /// Reads the access lists that a document refers to.
    ///
    /// # Errors
    /// A part is malformed.
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

    /// Returns the access lists.
    pub(super) fn access(&self) -> &Arc<AccessModel> {
        &self.access
    }

    /// Returns the location of the access lists, if there are any.
    pub(super) fn directory(&self) -> Option<Part> {
        self.directory
    }

    /// Writes other access lists. They are valid once a document that refers to them was saved.
    ///
    /// # Errors
    /// They are too long ([`io::ErrorKind::FileTooLarge`]), or the system's refusal.
    pub(super) fn with(
        &self,
        access: &Arc<AccessModel>,
        ahead: &EncodedPieces,
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

impl EncodedPieces {
    /// Encodes the pieces of `new` that `old` does not have.
    ///
    /// # Errors
    /// A piece cannot be encoded as JSON.
    pub(crate) fn new(old: &AccessModel, new: &AccessModel) -> io::Result<Self> {
        let mut encoded = Self::default();
        encoded.add(&[&old.address_sets], &new.address_sets)?;
        let had: Vec<_> = old.lists.iter().map(|list| &list.rules).collect();
        for list in &new.lists {
            encoded.add(&had, &list.rules)?;
        }
        Ok(encoded)
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

/// Returns the address of a piece, which is unique as long as the piece is held.
fn key<T>(piece: &Arc<Piece<T>>) -> usize {
    Arc::as_ptr(piece).addr()
}

fn json<T: Serialize>(piece: &Piece<T>) -> io::Result<Vec<u8>> {
    serde_json::to_vec(piece.elements()).map_err(io::Error::other)
}

impl Writer<'_> {
    fn lists(mut self, access: &Arc<AccessModel>) -> io::Result<Lists> {
        let directory = if access.is_empty() {
            None
        } else {
            Some(self.write(access)?)
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
    serde_json::from_slice(&file.load_part(part)?).map_err(super::malformed)
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
