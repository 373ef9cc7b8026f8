//! The resources that a client has opened on its connection: file handles, watches, searches, HTTP
//! bodies. All of them end with the connection.

mod bodies;
mod files;
mod id_table;

pub(crate) use bodies::{HttpBodies, HttpStream, StreamWindow, WholeRequest};
pub(crate) use files::{FileHandle, Files, WatchTask};

use crate::ServerConfig;

#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) files: Files,
    pub(crate) bodies: HttpBodies,
}

impl Resources {
    /// Limits the resources of a client that is not trusted with the server's memory.
    pub(crate) fn limited(config: &ServerConfig) -> Self {
        Self { files: Files::limited(config), bodies: HttpBodies::limited() }
    }

    pub(crate) fn end(&self) {
        self.files.end();
        self.bodies.end();
    }

    /// Sets no limits, for the program that the server is part of.
    pub(crate) fn unlimited() -> Self {
        Self { files: Files::unlimited(), bodies: HttpBodies::unlimited() }
    }
}
