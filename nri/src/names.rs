//! Names of the interface.

/// Where a runtime listens for plugins, unless it is configured otherwise.
pub const SOCKET: &str = "/run/nri/nri.sock";

/// The service that the runtime offers.
pub const RUNTIME: &str = "nri.pkg.api.v1alpha1.Runtime";
/// The service that a plugin offers.
pub const PLUGIN: &str = "nri.pkg.api.v1alpha1.Plugin";

/// The call of [`RUNTIME`] that we make.
pub const REGISTER_PLUGIN: &str = "RegisterPlugin";

/// A call of [`PLUGIN`]: who the runtime is, and which events are wanted.
pub const CONFIGURE: &str = "Configure";
/// A call of [`PLUGIN`]: all pods and containers that there are.
pub const SYNCHRONIZE: &str = "Synchronize";
/// A call of [`PLUGIN`]: a container is about to be made, and can be adjusted.
pub const CREATE_CONTAINER: &str = "CreateContainer";
/// A call of [`PLUGIN`]: a container was made, and is about to run its program.
pub const START_CONTAINER: &str = "StartContainer";
/// A call of [`PLUGIN`]: what all plugins together made of a container, which can still be refused.
pub const VALIDATE_CONTAINER_ADJUSTMENT: &str = "ValidateContainerAdjustment";
/// A call of [`PLUGIN`]: the runtime is about to end.
pub const SHUTDOWN: &str = "Shutdown";

/// The runtime's own validator, in the list of those who were asked: where it is on, it can demand plugins.
pub const DEFAULT_VALIDATOR: (&str, &str) = ("00", "default-validator");
