//! GPUs by claims, which several pods may share: what the DRA driver gives.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{
    CELDeviceSelector, DeviceClaim, DeviceClass, DeviceClassSpec, DeviceRequest, DeviceSelector,
    ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
};
use kube::Api;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::runtime::wait::conditions;

use crate::scene::{Scene, await_in};

/// How long pods may take to end, and their claims with them.
const GIVEN_BACK: Duration = Duration::from_secs(30);

/// The class of a whole GPU, as NVIDIA's driver calls it.
const CLASS: &str = "gpu.nvidia.com";
const IS_A_GPU: &str =
    r#"device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu""#;

/// The API's answer where something is there already.
const EXISTS: u16 = 409;

impl Scene<'_> {
    /// Waits until so many GPUs have no claim, and keeps other scenarios from claiming them. Once a scenario: two that each
    /// have some and wait for more would wait for ever.
    pub(crate) async fn reserve(&self, gpus: usize) -> anyhow::Result<()> {
        let seats = Arc::clone(&self.ground.unclaimed).acquire_many_owned(u32::try_from(gpus)?).await?;
        let before = self.seats.replace(Some(seats));
        anyhow::ensure!(before.is_none(), "GPUs are reserved already");
        Ok(())
    }

    /// Claims so many of the GPUs that are reserved.
    pub(crate) async fn claim(&self, name: &str, gpus: usize) -> anyhow::Result<()> {
        self.make_class().await?;
        let exactly = ExactDeviceRequest {
            count: Some(i64::try_from(gpus)?),
            device_class_name: CLASS.to_owned(),
            ..ExactDeviceRequest::default()
        };
        let request = DeviceRequest { name: "gpu".to_owned(), exactly: Some(exactly), first_available: None };
        let devices = DeviceClaim { requests: Some(vec![request]), ..DeviceClaim::default() };
        let claim = ResourceClaim {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            spec: Some(ResourceClaimSpec { devices: Some(devices) }),
            status: None,
        };
        self.all::<ResourceClaim>().create(&PostParams::default(), &claim).await?;
        Ok(())
    }

    /// Ends the pods, and waits until no claim of this namespace has a GPU any more.
    pub(crate) async fn give_back_claims(&self) -> anyhow::Result<()> {
        let (all, how) = (ListParams::default(), DeleteParams::default());
        self.all::<Pod>().delete_collection(&how, &all).await?;
        let claims = self.all::<ResourceClaim>();
        let given = claims.list(&all).await?;
        claims.delete_collection(&how, &all).await?;
        for claim in given {
            let (name, uid) =
                (claim.metadata.name.unwrap_or_default(), claim.metadata.uid.unwrap_or_default());
            await_in(&claims, &name, "the claim is given back", GIVEN_BACK, conditions::is_deleted(&uid))
                .await?;
        }
        Ok(())
    }

    /// The class is everybody's: another scenario may have made it.
    async fn make_class(&self) -> anyhow::Result<()> {
        let selector = CELDeviceSelector { expression: IS_A_GPU.to_owned() };
        let class = DeviceClass {
            metadata: ObjectMeta { name: Some(CLASS.to_owned()), ..ObjectMeta::default() },
            spec: Some(DeviceClassSpec {
                selectors: Some(vec![DeviceSelector { cel: Some(selector) }]),
                ..DeviceClassSpec::default()
            }),
        };
        match Api::all(self.client()).create(&PostParams::default(), &class).await {
            Err(kube::Error::Api(status)) if status.code == EXISTS => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}
