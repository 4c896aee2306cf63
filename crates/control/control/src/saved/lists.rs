//! Access lists in the state file. They may be long, and the document is written each second: so
//! they are separate parts of the file, and a change writes only the parts that differ.
//!
//! ```text
//! document -> directory: groups, defaults, lists -> chunks: address sets, rules
//! ```

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use api::v1::{
    AccessListSpec, AccessModel, Chunk, ChunkedList, Group, NamedElement, SegmentDefault,
};
use ipc::state::{Part, Place, StateFile};
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

/// Chunks in the file, by their addresses in memory. Holding the chunk keeps its address unique.
type Chunks = HashMap<usize, (Arc<dyn Any + Send + Sync>, Part)>;

/// Encoded chunks by their addresses in memory: encoding many of them as JSON takes time.
#[derive(Clone, Debug, Default)]
pub(crate) struct EncodedChunks(HashMap<usize, (Arc<dyn Any + Send + Sync>, Vec<u8>)>);

/// Access lists of the last document in the file.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    access: Arc<AccessModel>,
    directory: Option<Part>,
    chunks: Chunks,
    place: Place,
}

/// Writes the chunks that are not in the file yet.
struct Writer<'a> {
    file: &'a StateFile,
    old: &'a Chunks,
    ahead: &'a EncodedChunks,
    /// All chunks move to the other half of the file.
    anew: bool,
    chunks: Chunks,
    place: Place,
}

impl Lists {
    /// Reads the access lists that a document refers to.
    ///
    /// # Errors
    /// A part is malformed.
    pub(super) fn load(file: &StateFile, directory: Part) -> io::Result<Self> {
        let mut chunks = Chunks::new();
        let found: Directory = read(file, directory)?;
        let mut lists = Vec::with_capacity(found.lists.len());
        for (list, rules) in found.lists {
            let rules = read_all(file, rules, &mut chunks)?;
            lists.push(AccessListSpec { rules, ..list });
        }
        let access = AccessModel {
            address_sets: read_all(file, found.address_sets, &mut chunks)?,
            groups: found.groups,
            defaults: found.defaults,
            lists,
        };
        let parts = chunks.values().map(|(_, part)| *part);
        Ok(Self {
            access: Arc::new(access),
            directory: Some(directory),
            place: Place::behind(parts.chain([directory])),
            chunks,
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
        ahead: &EncodedChunks,
        file: &StateFile,
    ) -> io::Result<Self> {
        let (here, there) = (self.place.clone(), self.place.other_half());
        let live: u64 = self.chunks.values().map(|(_, part)| part.len()).sum();
        let writer = |place, anew| Writer {
            file,
            old: &self.chunks,
            ahead,
            anew,
            chunks: Chunks::new(),
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

impl EncodedChunks {
    /// Encodes the chunks of `new` that `old` does not have.
    ///
    /// # Errors
    /// A chunk cannot be encoded as JSON.
    pub(crate) fn new(old: &AccessModel, new: &AccessModel) -> io::Result<Self> {
        let mut encoded = Self::default();
        encoded.add(&[&old.address_sets], &new.address_sets)?;
        let had: Vec<_> = old.lists.iter().map(|list| &list.rules).collect();
        for list in &new.lists {
            encoded.add(&had, &list.rules)?;
        }
        Ok(encoded)
    }

    fn add<T>(&mut self, had: &[&ChunkedList<T>], list: &ChunkedList<T>) -> io::Result<()>
    where
        T: Serialize + Send + Sync + 'static,
    {
        let had = had.iter().flat_map(|list| list.chunks());
        let had: HashSet<usize> = had.map(key).collect();
        for chunk in list
            .chunks()
            .iter()
            .filter(|chunk| !had.contains(&key(chunk)))
        {
            let kept: Arc<dyn Any + Send + Sync> = Arc::clone(chunk) as _;
            self.0.insert(key(chunk), (kept, json(chunk)?));
        }
        Ok(())
    }
}

/// Returns the address of a chunk, which is unique as long as the chunk is held.
fn key<T>(chunk: &Arc<Chunk<T>>) -> usize {
    Arc::as_ptr(chunk).addr()
}

fn json<T: Serialize>(chunk: &Chunk<T>) -> io::Result<Vec<u8>> {
    serde_json::to_vec(chunk.elements()).map_err(io::Error::other)
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
            chunks: self.chunks,
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

    fn write_all<T>(&mut self, list: &ChunkedList<T>) -> io::Result<Vec<Part>>
    where
        T: Serialize + Send + Sync + 'static,
    {
        let mut parts = Vec::with_capacity(list.chunks().len());
        for chunk in list.chunks() {
            let key = key(chunk);
            let part = match (self.old.get(&key), self.ahead.0.get(&key)) {
                (Some((_, part)), _) if !self.anew => *part,
                (Some((_, part)), _) => {
                    let json = self.file.load_part(*part)?;
                    self.file.save_part(&mut self.place, &json)?
                }
                (None, Some((_, json))) => self.file.save_part(&mut self.place, json)?,
                (None, None) => self.file.save_part(&mut self.place, &json(chunk)?)?,
            };
            let kept: Arc<dyn Any + Send + Sync> = Arc::clone(chunk) as _;
            self.chunks.insert(key, (kept, part));
            parts.push(part);
        }
        Ok(parts)
    }
}

fn read<T: DeserializeOwned>(file: &StateFile, part: Part) -> io::Result<T> {
    serde_json::from_slice(&file.load_part(part)?).map_err(super::malformed)
}

fn read_all<T>(
    file: &StateFile,
    parts: Vec<Part>,
    chunks: &mut Chunks,
) -> io::Result<ChunkedList<T>>
where
    T: DeserializeOwned + NamedElement + Send + Sync + 'static,
{
    let mut list = ChunkedList::default();
    for part in parts {
        list.push_chunk(read(file, part)?);
        if let Some(chunk) = list.chunks().last() {
            let kept: Arc<dyn Any + Send + Sync> = Arc::clone(chunk) as _;
            chunks.insert(key(chunk), (kept, part));
        }
    }
    Ok(list)
}
