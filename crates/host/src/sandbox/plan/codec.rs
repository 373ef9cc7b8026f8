//! A plan as bytes, from the server to the keeper.
//!
//! Both are one executable, so numbers are native and there is no version. Decoding still believes nothing: what is not exactly
//! one plan is `None`, and then nothing is started.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Cover, CoverKind, LandlockRules, Mount, Plan, Regrant, Tier};
use crate::sandbox::policy::{Access, Grant, Network};

impl Plan {
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder(Vec::with_capacity(self.seccomp.len() + 512));
        match &self.tier {
            Tier::Direct => to.byte(0),
            Tier::Namespaces => to.byte(1),
            Tier::Bubblewrap(program) => {
                to.byte(2);
                to.path(program);
            }
            Tier::Seatbelt(profile) => {
                to.byte(3);
                to.bytes(profile.as_bytes());
            }
        }
        to.list(&self.mounts, Encoder::mount);
        match &self.landlock {
            None => to.byte(0),
            Some(LandlockRules { abi, grants: None, .. }) => {
                to.byte(1);
                to.number(*abi);
            }
            Some(LandlockRules { abi, grants: Some(grants), listed }) => {
                to.byte(2);
                to.number(*abi);
                to.list(grants, |to, grant| {
                    to.path(&grant.path);
                    to.access(grant.access);
                });
                to.list(listed, |to, directory| to.path(directory));
            }
        }
        to.bytes(&self.seccomp);
        to.flag(self.network == Network::Enabled);
        to.flag(self.new_network_namespace);
        to.flag(self.fresh_proc);
        to.flag(self.own_terminals);
        to.0
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Decoder(bytes);
        let plan =
            Self {
                tier: match from.byte()? {
                    0 => Tier::Direct,
                    1 => Tier::Namespaces,
                    2 => Tier::Bubblewrap(from.path()?),
                    3 => Tier::Seatbelt(String::from_utf8(from.bytes()?.to_vec()).ok()?),
                    _ => return None,
                },
                mounts: from.list(Decoder::mount)?,
                landlock: match from.byte()? {
                    0 => None,
                    1 => Some(LandlockRules { abi: from.number()?, grants: None, listed: vec![] }),
                    2 => Some(LandlockRules {
                        abi: from.number()?,
                        grants: Some(from.list(|from| {
                            Some(Grant { path: from.path()?, access: from.access()? })
                        })?),
                        listed: from.list(Decoder::path)?,
                    }),
                    _ => return None,
                },
                seccomp: from.bytes()?.to_vec(),
                network: if from.flag()? { Network::Enabled } else { Network::Restricted },
                new_network_namespace: from.flag()?,
                fresh_proc: from.flag()?,
                own_terminals: from.flag()?,
            };
        from.0.is_empty().then_some(plan)
    }
}

struct Encoder(Vec<u8>);

impl Encoder {
    fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    fn flag(&mut self, value: bool) {
        self.byte(value.into());
    }

    fn number(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_ne_bytes());
    }

    fn length(&mut self, value: usize) {
        self.number(u32::try_from(value).expect("a plan is far smaller than 4 GiB"));
    }

    fn bytes(&mut self, value: &[u8]) {
        self.length(value.len());
        self.0.extend_from_slice(value);
    }

    fn path(&mut self, value: &Path) {
        self.bytes(value.as_os_str().as_bytes());
    }

    fn access(&mut self, value: Access) {
        self.byte(match value {
            Access::Deny => 0,
            Access::Read => 1,
            Access::Write => 2,
        });
    }

    fn list<T>(&mut self, items: &[T], encode: impl Fn(&mut Self, &T)) {
        self.length(items.len());
        for item in items {
            encode(self, item);
        }
    }

    fn mount(&mut self, mount: &Mount) {
        match mount {
            Mount::Cover(cover) => {
                self.byte(match cover.kind {
                    CoverKind::ReadOnly => 0,
                    CoverKind::Hidden => 1,
                    CoverKind::NoDevices => 2,
                    CoverKind::HiddenLink => 5,
                });
                self.path(&cover.path);
                self.flag(cover.is_directory);
                self.flag(cover.missing);
            }
            Mount::Regrant(regrant) => {
                self.byte(3);
                self.path(&regrant.path);
                self.access(regrant.access);
                self.flag(regrant.is_directory);
            }
            Mount::Fresh(path) => {
                self.byte(4);
                self.path(path);
            }
        }
    }
}

struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.take(4)?.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        self.take(len)
    }

    fn path(&mut self) -> Option<PathBuf> {
        Some(OsStr::from_bytes(self.bytes()?).into())
    }

    fn access(&mut self) -> Option<Access> {
        Some(match self.byte()? {
            0 => Access::Deny,
            1 => Access::Read,
            2 => Access::Write,
            _ => return None,
        })
    }

    /// Grows as items are really there, whatever length is claimed.
    fn list<T>(&mut self, mut decode: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let len = self.number()?;
        let mut items = Vec::new();
        for _ in 0..len {
            items.push(decode(self)?);
        }
        Some(items)
    }

    fn mount(&mut self) -> Option<Mount> {
        let kind = match self.byte()? {
            0 => CoverKind::ReadOnly,
            1 => CoverKind::Hidden,
            2 => CoverKind::NoDevices,
            3 => {
                return Some(Mount::Regrant(Regrant {
                    path: self.path()?,
                    access: self.access()?,
                    is_directory: self.flag()?,
                }));
            }
            4 => return Some(Mount::Fresh(self.path()?)),
            5 => CoverKind::HiddenLink,
            _ => return None,
        };
        Some(Mount::Cover(Cover {
            path: self.path()?,
            kind,
            is_directory: self.flag()?,
            missing: self.flag()?,
        }))
    }
}
