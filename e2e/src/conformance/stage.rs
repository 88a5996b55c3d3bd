//! What rows have at hand: puppets in each place, started when first asked for and started anew when not well.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::memory;
use super::place::Place;
use super::puppet::{End, Puppet, Step};
use super::wire::Request;

/// How long one row may take.
const ROW: Duration = Duration::from_secs(15);

/// The suite's stage. It never loads the driver itself.
#[derive(Debug)]
pub(crate) struct Stage {
    /// Holds the copy of this program that puppets run.
    folder: tempfile::TempDir,
    deadline: Instant,
    places: HashMap<Place, Result<(), String>>,
    cast: HashMap<(Place, &'static str), Puppet>,
    /// Number of devices that a puppet sees.
    pub(crate) devices: u64,
    /// What the driver answers to cuDriverGetVersion.
    pub(crate) version: u64,
}

impl Stage {
    /// Copies the program to where another user can run it, and asks a first puppet for the driver.
    pub(crate) fn new() -> anyhow::Result<Stage> {
        let folder = tempfile::Builder::new().prefix("conformance").tempdir().context("make a folder")?;
        let program = folder.path().join("conformance");
        std::fs::copy(std::env::current_exe()?, &program).context("copy this program")?;
        for path in [folder.path(), &program] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
                .context("let others run it")?;
        }
        // For the simulated driver, see `Place::command`.
        let meeting = folder.path().join("simulated");
        std::fs::create_dir(&meeting).context("make a folder")?;
        std::fs::set_permissions(&meeting, std::fs::Permissions::from_mode(0o777))
            .context("let others write to it")?;
        let deadline = Instant::now() + ROW;
        let (places, cast) = (HashMap::new(), HashMap::new());
        let mut stage = Stage { folder, deadline, places, cast, devices: 0, version: 0 };
        let first = stage
            .fresh(&Place::here())
            .map_err(|end| anyhow::anyhow!("start a first child process: {end}"))?;
        first.tell(Request::Init).map_err(|end| anyhow::anyhow!("initialise the driver: {end}"))?;
        let ask = |request| first.word(request).map_err(|end| anyhow::anyhow!("ask the driver: {end}"));
        stage.devices = ask(Request::DeviceCount)?;
        stage.version = ask(Request::Version)?;
        Ok(stage)
    }

    /// A row begins.
    pub(crate) fn begin_row(&mut self) {
        self.deadline = Instant::now() + ROW;
    }

    /// The minor number of a device, by the driver's own tree: `/proc/driver/nvidia`, or what the simulated driver has in its place.
    pub(crate) fn minor_of(&mut self, device: i32) -> Step<u32> {
        let bus = self.initialised(&Place::here())?.text(Request::PciBusId { device })?;
        let not_run = |why: String| End::NotRun(format!("the driver's tree: {why}"));
        for root in [self.meeting().join("proc"), PathBuf::from("/proc")] {
            let file = root.join("driver/nvidia/gpus").join(&bus).join("information");
            let Ok(text) = std::fs::read_to_string(&file) else { continue };
            let minor = text.lines().find_map(|line| line.strip_prefix("Device Minor:")?.trim().parse().ok());
            return minor.ok_or_else(|| not_run(format!("{} names no minor number", file.display())));
        }
        Err(not_run(format!("no information about {bus}")))
    }

    /// The simulated driver's directory, as the puppets have it.
    fn meeting(&self) -> PathBuf {
        std::env::var_os("SIMCUDA_DIR").map_or_else(|| self.folder.path().join("simulated"), PathBuf::from)
    }

    /// The program that children run, if anything can run in that place.
    pub(crate) fn program_for(&mut self, place: &Place) -> Step<PathBuf> {
        let checked = self.places.entry(place.clone()).or_insert_with(|| place.check());
        checked.clone().map_err(|why| End::NotRun(format!("place \"{}\": {why}", place.name)))?;
        Ok(self.folder.path().join("conformance"))
    }

    /// A puppet of this row's own that has called nothing yet.
    pub(crate) fn fresh(&mut self, place: &Place) -> Step<Puppet> {
        Puppet::start(&self.program_for(place)?, place, self.deadline)
    }

    /// A puppet of this row's own with the driver initialised and no context.
    pub(crate) fn initialised(&mut self, place: &Place) -> Step<Puppet> {
        let puppet = self.fresh(place)?;
        puppet.tell(Request::Init)?;
        Ok(puppet)
    }

    /// A puppet of this row's own with device 0's primary context current.
    pub(crate) fn own(&mut self, place: &Place) -> Step<Puppet> {
        let puppet = self.initialised(place)?;
        memory::enter(&puppet, 0)?;
        Ok(puppet)
    }

    /// The puppet that rows share in a role, with device 0's primary context current; a fresh one if the last is not well.
    pub(crate) fn shared(&mut self, place: &Place, role: &'static str) -> Step<Puppet> {
        self.shared_as((place.clone(), role), Puppet::is_well, |stage| stage.own(place))
    }

    fn shared_as(
        &mut self,
        key: (Place, &'static str),
        usable: fn(&Puppet) -> bool,
        make: impl FnOnce(&mut Stage) -> Step<Puppet>,
    ) -> Step<Puppet> {
        if let Some(puppet) = self.cast.get(&key) {
            puppet.set_deadline(self.deadline);
            if usable(puppet) {
                return Ok(puppet.clone());
            }
        }
        let puppet = make(self)?;
        self.cast.insert(key, puppet.clone());
        Ok(puppet)
    }

    /// A puppet that rows share, with the driver initialised and no context ever.
    pub(crate) fn shared_without_context(&mut self, role: &'static str) -> Step<Puppet> {
        self.shared_as((Place::here(), role), Puppet::has_no_context, |stage| {
            stage.initialised(&Place::here())
        })
    }

    /// A puppet that rows share and that calls cuInit in none of them.
    pub(crate) fn shared_uninitialised(&mut self) -> Step<Puppet> {
        self.shared_as((Place::here(), "uninitialised"), Puppet::is_there, |stage| {
            stage.fresh(&Place::here())
        })
    }

    /// The shared puppet for rows that need only one.
    pub(crate) fn solo(&mut self) -> Step<Puppet> {
        self.shared(&Place::here(), "solo")
    }

    /// The shared exporter and importer, both here.
    pub(crate) fn pair(&mut self) -> Step<(Puppet, Puppet)> {
        Ok((self.shared(&Place::here(), "exporter")?, self.shared(&Place::here(), "importer")?))
    }
}

impl std::fmt::Debug for Puppet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Puppet")
    }
}
