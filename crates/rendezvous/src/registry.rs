//! The calls of the registry, which take a credential and a body and return a response, and the
//! admission of sockets by ticket.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use exec_server_relay::registry::{
    ConnectRequest, ConnectResponse, RegisterRequest, RegisterResponse, SECURITY_PROFILE,
    ValidateRequest, ValidateResponse,
};
use exec_server_transport::{new_token, sha256};
use tokio::time::Instant;
use uuid::Uuid;

use crate::config::{Quotas, RendezvousConfig};
use crate::credential::{Credential, CredentialId, Role};
use crate::directory::{Authorization, Directory, DirectoryError, Lease, Registration, Ticket};
use crate::environment_id::EnvironmentId;
use crate::error_response::Refusal;
use crate::public_key::PublicKey;
use crate::quota::RateLimits;
use crate::router::{RelayEnd, Router, SocketGrant};
use crate::sockets::{Admission, Route};
use crate::tunnel::Bus;

#[derive(Debug)]
pub(crate) struct Registry {
    directory: Arc<dyn Directory>,
    router: Arc<Router>,
    /// Where peers reach this node, as `ws://` or `wss://`, without a slash at the end.
    node_url: String,
    /// The id of this node.
    node: String,
    /// Without a bus, harnesses dial the node that holds the socket of their environment.
    bus: Option<Arc<Bus>>,
    ticket_lifetime: Duration,
    connects_of_environments: RateLimits<EnvironmentId>,
}

impl Registry {
    pub(crate) fn new(
        config: &RendezvousConfig,
        directory: Arc<dyn Directory>,
        router: Arc<Router>,
        node: &str,
        node_url: String,
    ) -> Self {
        let Quotas { calls_per_second, calls_at_once, .. } = config.quotas;
        Self {
            directory,
            router,
            node_url,
            node: node.to_owned(),
            bus: config.routing.bus().cloned(),
            ticket_lifetime: config.ticket_lifetime,
            connects_of_environments: RateLimits::new(calls_per_second, calls_at_once),
        }
    }

    pub(crate) fn node_url(&self) -> &str {
        &self.node_url
    }

    /// Registers the caller as the environment. Ends any earlier registration of the environment.
    pub(crate) async fn register(
        &self,
        caller: &Credential,
        environment: &EnvironmentId,
        request: RegisterRequest<PublicKey>,
    ) -> Result<RegisterResponse, Refusal> {
        authorize(caller, Role::Environment, environment)?;
        if request.security_profile != SECURITY_PROFILE {
            return Err(Refusal::invalid(format!("security_profile must be {SECURITY_PROFILE:?}")));
        }
        let ticket = new_token();
        let registration = Registration {
            registration_id: Uuid::new_v4().to_string(),
            public_key: request.executor_public_key,
            node_url: self.node_url.clone(),
            credential: caller.id.clone(),
            ticket: sha256(ticket.as_bytes()),
        };
        let lease = self.directory.replace_registration(environment, registration).await?;
        self.router.close_older_than(environment, lease.generation);
        tracing::info!(%environment, credential = %caller.id, "environment registered");
        Ok(RegisterResponse {
            environment_id: environment.to_string(),
            url: format!("{}/relay/environment?id={environment}&ticket={ticket}", self.node_url),
            security_profile: SECURITY_PROFILE.to_owned(),
            executor_registration_id: lease.registration.registration_id,
        })
    }

    /// Returns everything that a harness needs for one physical connection.
    pub(crate) async fn connect(
        &self,
        caller: &Credential,
        environment: &EnvironmentId,
        request: ConnectRequest<PublicKey>,
        now: SystemTime,
    ) -> Result<ConnectResponse<PublicKey>, Refusal> {
        authorize(caller, Role::Harness, environment)?;
        self.count_connect(environment)?;
        let lease = self.directory.lookup(environment).await?.ok_or_else(Refusal::offline)?;
        let node_url = self.node_of(environment, &lease).ok_or_else(Refusal::offline)?;
        let Registration { registration_id, public_key, .. } = lease.registration;
        let (ticket, authorization) = (new_token(), new_token());
        let expires = now + self.ticket_lifetime;
        let ticket_record = Ticket {
            environment: environment.clone(),
            registration_id: registration_id.clone(),
            credential: caller.id.clone(),
            expires,
        };
        self.directory.put_ticket(sha256(ticket.as_bytes()), ticket_record, now).await?;
        let authorization_record = Authorization {
            environment: environment.clone(),
            registration_id: registration_id.clone(),
            harness_public_key: request.harness_public_key,
            credential: caller.id.clone(),
            expires,
        };
        let hash = sha256(authorization.as_bytes());
        self.directory.put_authorization(hash, authorization_record, now).await?;
        Ok(ConnectResponse {
            environment_id: environment.to_string(),
            url: format!("{node_url}/relay/harness?ticket={ticket}"),
            security_profile: SECURITY_PROFILE.to_owned(),
            executor_registration_id: registration_id,
            executor_public_key: public_key,
            harness_key_authorization: authorization,
        })
    }

    /// Returns the URL of a node through which an environment is reachable; `None` if it is
    /// offline.
    fn node_of(&self, environment: &EnvironmentId, lease: &Lease) -> Option<String> {
        let registered_at = &lease.registration.node_url;
        let (is_elsewhere, elsewhere) = match self.bus {
            // All nodes have the same URL.
            Some(_) => (self.other_node(lease).is_some(), &self.node_url),
            None => (*registered_at != self.node_url && lease.node.is_some(), registered_at),
        };
        match (self.is_here(environment, lease), is_elsewhere) {
            (true, _) => Some(self.node_url.clone()),
            (false, true) => Some(elsewhere.clone()),
            (false, false) => None,
        }
    }

    /// Returns whether another node holds the socket of an environment.
    pub(crate) async fn is_elsewhere(
        &self,
        environment: &EnvironmentId,
    ) -> Result<bool, DirectoryError> {
        let lease = self.directory.lookup(environment).await?;
        Ok(lease.is_some_and(|lease| self.other_node(&lease).is_some()))
    }

    /// Returns the route from a harness socket at this node to its environment.
    fn route_to(&self, environment: &EnvironmentId, lease: &Lease) -> Result<Route, Refusal> {
        let Some(bus) = self.bus.clone() else { return Ok(Route::Here) };
        if self.is_here(environment, lease) {
            return Ok(Route::Here);
        }
        // A disconnected environment may reconnect to any node, so the harness cannot wait here.
        let node = self.other_node(lease).ok_or_else(Refusal::offline)?.to_owned();
        Ok(Route::Tunnel { bus, node, generation: lease.generation })
    }

    fn is_here(&self, environment: &EnvironmentId, lease: &Lease) -> bool {
        self.router.online_generation(environment) == Some(lease.generation)
    }

    /// Returns the node that holds the environment's socket, if it is not this one.
    fn other_node<'l>(&self, lease: &'l Lease) -> Option<&'l str> {
        lease.node.as_deref().filter(|node| *node != self.node)
    }

    /// Validates an authorization for a key at a registration, and uses it up.
    pub(crate) async fn validate(
        &self,
        caller: &Credential,
        environment: &EnvironmentId,
        request: &ValidateRequest<PublicKey>,
        now: SystemTime,
    ) -> Result<ValidateResponse, Refusal> {
        authorize(caller, Role::Environment, environment)?;
        const INVALID: ValidateResponse = ValidateResponse { valid: false, subject: None };
        // Looked up before the authorization is used up, so that a failed lookup can be retried.
        let lease = self.directory.lookup(environment).await?;
        let hash = sha256(request.harness_key_authorization.as_bytes());
        let Some(authorization) = self.directory.take_authorization(hash, now).await? else {
            return Ok(INVALID);
        };
        let is_same = authorization.environment == *environment
            && authorization.registration_id == request.executor_registration_id
            && authorization.harness_public_key == request.harness_public_key;
        if !is_same {
            return Ok(INVALID);
        }
        // Since the authorization was issued, the environment may have registered again, and the
        // harness may have lost its access.
        let current = lease.map(|lease| lease.registration.registration_id);
        let harness = self.directory.credential(&authorization.credential).await?;
        let harness = harness.filter(|harness| harness.is_valid_at(now));
        Ok(match harness {
            Some(harness) if current.as_deref() == Some(&*authorization.registration_id) => {
                ValidateResponse { valid: true, subject: Some(harness.subject().to_owned()) }
            }
            _ => INVALID,
        })
    }

    /// Admits the socket of an environment by the ticket of its registration.
    pub(crate) async fn admit_environment(
        &self,
        environment: EnvironmentId,
        ticket: &str,
        now: SystemTime,
    ) -> Result<SocketGrant, Refusal> {
        let hash = sha256(ticket.as_bytes());
        let lease = self.directory.lookup(&environment).await?;
        let lease = lease.filter(|lease| lease.registration.ticket == hash);
        let Lease { generation, registration, .. } = lease.ok_or_else(Refusal::bad_ticket)?;
        let credential = self.valid_credential(&registration.credential, now).await?;
        let permit = self.router.permit(&credential.id, None).ok_or_else(too_many_sockets)?;
        let end = RelayEnd::Environment { generation };
        let Credential { id: credential, expires, .. } = credential;
        Ok(SocketGrant { environment, credential, expires, end, permit })
    }

    /// Admits the socket of a harness by a single-use ticket.
    pub(crate) async fn admit_harness(
        &self,
        ticket: &str,
        now: SystemTime,
    ) -> Result<Admission, Refusal> {
        let found = self.directory.take_ticket(sha256(ticket.as_bytes()), now).await?;
        let Ticket { environment, registration_id, credential, .. } =
            found.ok_or_else(Refusal::bad_ticket)?;
        let lease = self.directory.lookup(&environment).await?;
        let lease = lease.filter(|lease| lease.registration.registration_id == registration_id);
        let lease = lease.ok_or_else(Refusal::replaced)?;
        let route = self.route_to(&environment, &lease)?;
        let credential = self.valid_credential(&credential, now).await?;
        let permit = self.router.permit(&credential.id, Some(&environment));
        let permit = permit.ok_or_else(too_many_sockets)?;
        let Credential { id: credential, expires, .. } = credential;
        let end = RelayEnd::Harness;
        let grant = SocketGrant { environment, credential, expires, end, permit };
        Ok(Admission { grant, route })
    }

    pub(crate) fn forget_idle(&self, now: Instant) {
        self.connects_of_environments.forget_idle(now);
    }

    async fn valid_credential(
        &self,
        id: &CredentialId,
        now: SystemTime,
    ) -> Result<Credential, Refusal> {
        let credential = self.directory.credential(id).await?;
        credential.filter(|it| it.is_valid_at(now)).ok_or_else(Refusal::bad_ticket)
    }

    /// Counts a connect call against the rate that the harnesses of one environment share. The
    /// environment's own calls are not counted here.
    fn count_connect(&self, environment: &EnvironmentId) -> Result<(), Refusal> {
        match self.connects_of_environments.of(environment).try_take(Instant::now()) {
            true => Ok(()),
            false => Err(Refusal::too_many(
                "too many connect calls for this environment; try again in a second",
            )),
        }
    }
}

fn authorize(caller: &Credential, role: Role, environment: &EnvironmentId) -> Result<(), Refusal> {
    if caller.role != role {
        return Err(Refusal::forbidden(match role {
            Role::Environment => "this call needs a credential with the role environment",
            Role::Harness => "this call needs a credential with the role harness",
            Role::Operator => "this call needs a credential with the role operator",
        }));
    }
    if !caller.environments.contains(environment) {
        let message = format!("this credential is not for the environment {environment}");
        return Err(Refusal::forbidden(&message));
    }
    Ok(())
}

fn too_many_sockets() -> Refusal {
    Refusal::too_many("this credential, its environment or the service has too many open sockets")
}
