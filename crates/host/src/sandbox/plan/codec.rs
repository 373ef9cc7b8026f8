//! Encodes a plan as bytes, which the server passes to the keeper.
//!
//! Both ends are the same executable, so numbers are in native byte order and there is no version.
//! Decoding still trusts nothing: bytes that are not exactly one plan yield `None`, and then no
//! process is started.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{
    Cover, CoverKind, GateSockets, LandlockRules, Mount, NetworkNamespace, Plan, Regrant, Tier,
};
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
        to.option(self.landlock.as_ref(), |to, rules| {
            to.number(rules.abi);
            to.option(rules.grants.as_ref(), |to, grants| {
                to.list(grants, |to, grant| {
                    to.path(&grant.path);
                    to.access(grant.access);
                });
            });
            to.list(&rules.listed, |to, directory| to.path(directory));
            to.option(rules.connect_ports.as_ref(), |to, ports| {
                to.list(ports, |to, port| to.number((*port).into()));
            });
        });
        to.bytes(&self.seccomp);
        to.byte(match self.network {
            Network::Restricted => 0,
            Network::Managed => 1,
            Network::Enabled => 2,
        });
        match &self.network_namespace {
            NetworkNamespace::Inherited => to.byte(0),
            NetworkNamespace::Empty => to.byte(1),
            NetworkNamespace::Gated(sockets) => {
                to.byte(2);
                to.gate_sockets(sockets);
            }
        }
        to.flag(self.fresh_proc);
        to.flag(self.own_terminals);
        to.0
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Decoder(bytes);
        let plan = Self {
            tier: match from.byte()? {
                0 => Tier::Direct,
                1 => Tier::Namespaces,
                2 => Tier::Bubblewrap(from.path()?),
                3 => Tier::Seatbelt(String::from_utf8(from.bytes()?.to_vec()).ok()?),
                _ => return None,
            },
            mounts: from.list(Decoder::mount)?,
            landlock: from.option(|from| {
                Some(LandlockRules {
                    abi: from.number()?,
                    grants: from.option(|from| {
                        from.list(|from| Some(Grant { path: from.path()?, access: from.access()? }))
                    })?,
                    listed: from.list(Decoder::path)?,
                    connect_ports: from.option(|from| from.list(Decoder::port))?,
                })
            })?,
            seccomp: from.bytes()?.to_vec(),
            network: match from.byte()? {
                0 => Network::Restricted,
                1 => Network::Managed,
                2 => Network::Enabled,
                _ => return None,
            },
            network_namespace: match from.byte()? {
                0 => NetworkNamespace::Inherited,
                1 => NetworkNamespace::Empty,
                2 => NetworkNamespace::Gated(from.gate_sockets()?),
                _ => return None,
            },
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

    fn option<T>(&mut self, value: Option<&T>, encode: impl FnOnce(&mut Self, &T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            encode(self, value);
        }
    }

    fn gate_sockets(&mut self, sockets: &GateSockets) {
        let GateSockets { dns, direct_ports, http_proxy, socks5, socks5_udp } = sockets;
        self.flag(*dns);
        self.list(direct_ports, |to, port| to.number((*port).into()));
        self.flag(*http_proxy);
        self.flag(*socks5);
        self.flag(*socks5_udp);
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

    /// Allocates only for items that are present, whatever length is claimed.
    fn list<T>(&mut self, mut decode: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let len = self.number()?;
        let mut items = Vec::new();
        for _ in 0..len {
            items.push(decode(self)?);
        }
        Some(items)
    }

    /// `None` on malformed input, `Some(None)` if the value is absent.
    fn option<T>(&mut self, decode: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.flag()? { decode(self).map(Some) } else { Some(None) }
    }

    fn port(&mut self) -> Option<u16> {
        self.number()?.try_into().ok()
    }

    fn gate_sockets(&mut self) -> Option<GateSockets> {
        Some(GateSockets {
            dns: self.flag()?,
            direct_ports: self.list(Self::port)?,
            http_proxy: self.flag()?,
            socks5: self.flag()?,
            socks5_udp: self.flag()?,
        })
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
