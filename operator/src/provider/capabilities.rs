//! What runs of a provider may ask for. Pure.

use subagent_crds::report::Agent;

/// What every agent can do here, whatever it advertises: depths are the operator's.
pub const OF_EVERY_AGENT: &[&str] = &["DepthLimit"];

/// What only a handshake tells of an agent. `Persona` and `Steering` can be advertised, too, and stay out as long as no
/// worker serves them: a run that asked for them would be accepted and then ignored (contract c7).
pub const ADVERTISED: &[&str] =
    &["LoadSession", "ResumeSession", "ForkSession", "CloseSession", "ImagePrompt", "AudioPrompt", "EmbeddedContext"];

/// The capabilities of a provider whose agent, where it is known, is this one.
pub fn of(agent: Option<&Agent>) -> Vec<String> {
    let advertised = agent.iter().flat_map(|agent| &agent.capabilities).map(String::as_str);
    let known = advertised.filter(|name| ADVERTISED.contains(name));
    OF_EVERY_AGENT.iter().copied().chain(known).map(ToOwned::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c7_what_no_worker_serves_is_no_capability_whoever_advertises_it() {
        let capabilities = ["ImagePrompt", "Persona", "Steering", "DepthLimit", "OutputSchema", "LoadSession"];
        let agent = Agent { capabilities: capabilities.map(Into::into).to_vec(), ..Agent::default() };
        assert_eq!(of(Some(&agent)), ["DepthLimit", "ImagePrompt", "LoadSession"]);
        assert_eq!(of(None), ["DepthLimit"]);
    }
}
