//! Access lists in the state file. They may be long, and the document is written each second: so they are parts of the file, and a
//! change writes the parts anew that are others.
//!
//! ```text
//! document -> directory: everything of the access lists but sets and rules -> pieces of sets and of rules
//! ```

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use api::v1::{AccessListSpec, AccessModel, Group, Named, SegmentDefault, Shared};
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
    pub(super) fn with(&self, access: &Arc<AccessModel>, file: &StateFile) -> io::Result<Self> {
        let (here, there) = (self.place.clone(), self.place.other_half());
        let live: u64 = self.pieces.values().map(|(_, part)| part.len()).sum();
        if self.place.used() > live + live / 2 + WASTE {
            return self.written(access, file, there, true);
        }
        match self.written(access, file, here, false) {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                self.written(access, file, there, true)
            }
            written => written,
        }
    }

    fn written(
        &self,
        access: &Arc<AccessModel>,
        file: &StateFile,
        place: Place,
        anew: bool,
    ) -> io::Result<Self> {
        let mut writer = Writer {
            file,
            old: &self.pieces,
            anew,
            pieces: Pieces::new(),
            place,
        };
        let directory = match access.is_empty() {
            true => None,
            false => Some(writer.write(access)?),
        };
        Ok(Self {
            access: Arc::clone(access),
            directory,
            pieces: writer.pieces,
            place: writer.place,
        })
    }
}

impl Writer<'_> {
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
            let key = Arc::as_ptr(piece).addr();
            let part = match self.old.get(&key) {
                Some((_, part)) if !self.anew => *part,
                Some((_, part)) => {
                    let json = self.file.load_part(*part)?;
                    self.file.save_part(&mut self.place, &json)?
                }
                None => {
                    let json = serde_json::to_vec(piece.elements()).map_err(io::Error::other)?;
                    self.file.save_part(&mut self.place, &json)?
                }
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
            pieces.insert(Arc::as_ptr(piece).addr(), (kept, part));
        }
    }
    Ok(list)
}
