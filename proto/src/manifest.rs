//! Manifests of testbeds, which describe the reserved nodes: CloudLab's manifest (RSpec 3), the JSON that the notebook of
//! `ccbench testbed fabric` writes, and the output of `containerlab inspect --format json`. All returned names are safe as words of
//! a shell command.

use std::collections::BTreeMap;
use std::net::{AddrParseError, IpAddr};

use serde::Deserialize;

/// Namespace of the elements of a manifest.
const RSPEC: &str = "http://www.geni.net/resources/rspec/3";
/// Default port of ssh.
const SSH_PORT: u16 = 22;
/// Longest name of a host or user.
const MAX_WORD: usize = 255;

/// A node that a testbed has reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedNode {
    /// Its name in the request.
    pub name: String,
    /// Its address in the control network.
    pub control: IpAddr,
    /// How to run commands on it.
    pub access: Access,
}

/// How to run commands on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// By ssh.
    Ssh {
        /// User.
        user: String,
        /// Host.
        host: String,
        /// Port.
        port: u16,
    },
    /// In a container with this name.
    Container(String),
    /// Through the notebook that wrote the manifest.
    Notebook,
}

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It is not XML.
    #[error("it is not XML: {0}; save the text of the experiment's tab \"Manifest\"")]
    Xml(#[from] roxmltree::Error),
    /// It is XML, but not a manifest.
    #[error(
        "it is not a manifest but a `{0}`; save the text of the experiment's tab \"Manifest\", not of \"Profile\""
    )]
    NotAManifest(String),
    /// It is not the expected JSON.
    #[error("{0}; give the output of {1}")]
    Json(serde_json::Error, &'static str),
    /// It has no nodes.
    #[error("it has no nodes")]
    Empty,
    /// A node lacks something.
    #[error("node `{node}` has no {what}; is it ready?")]
    Lacks {
        /// The node.
        node: String,
        /// What is missing.
        what: &'static str,
    },
    /// An address cannot be read.
    #[error("the address `{text}` of node `{node}`: {source}")]
    Address {
        /// The node.
        node: String,
        /// The text in its place.
        text: String,
        /// Why.
        source: AddrParseError,
    },
    /// A name is not that of a host, a user or a container.
    #[error("`{0}` is not a name of a host, a user or a container")]
    Word(String),
    /// Two nodes have the same name.
    #[error("there are two nodes `{0}`; save the output for one experiment")]
    Twice(String),
}

/// Reads the nodes of CloudLab's manifest, in its order.
///
/// # Errors
/// It is not a manifest, or a node is not ready.
pub fn cloudlab(text: &str) -> Result<Vec<ReservedNode>, ManifestError> {
    let document = roxmltree::Document::parse(text)?;
    let root = document.root_element();
    if !root.has_tag_name((RSPEC, "rspec")) || root.attribute("type") != Some("manifest") {
        let kind = root.attribute("type").unwrap_or(root.tag_name().name());
        return Err(ManifestError::NotAManifest(kind.escape_debug().to_string()));
    }
    let nodes = root.children().filter(|child| child.has_tag_name((RSPEC, "node")));
    distinct(nodes.map(cloudlab_node).collect::<Result<_, _>>()?)
}

fn cloudlab_node(node: roxmltree::Node<'_, '_>) -> Result<ReservedNode, ManifestError> {
    let name = word(node.attribute("client_id").unwrap_or_default())?;
    let lacks = |what| ManifestError::Lacks { node: name.clone(), what };
    let find = |tag: &str| node.descendants().find(|element| element.has_tag_name((RSPEC, tag)));
    let host = find("host").and_then(|host| host.attribute("ipv4"));
    let control = address(&name, host.ok_or_else(|| lacks("address (`host` with `ipv4`)"))?)?;
    let login = find("login").ok_or_else(|| lacks("`login`"))?;
    let of = |key: &str| login.attribute(key).ok_or_else(|| lacks("`login` with host and user"));
    let port = login.attribute("port").and_then(|port| port.parse().ok());
    let access = Access::Ssh {
        user: word(of("username")?)?,
        host: word(of("hostname")?)?,
        port: port.unwrap_or(SSH_PORT),
    };
    Ok(ReservedNode { name, control, access })
}

#[derive(Deserialize)]
struct FabricNode {
    name: String,
    control_address: String,
}

/// Reads the nodes in the JSON of the notebook: an array of objects with `name` and `control_address`.
///
/// # Errors
/// It is not such JSON.
pub fn fabric(text: &str) -> Result<Vec<ReservedNode>, ManifestError> {
    let nodes: Vec<FabricNode> = serde_json::from_str(text)
        .map_err(|error| ManifestError::Json(error, "the notebook (`manifest.json`)"))?;
    let node = |node: FabricNode| {
        let control = address(&node.name, &node.control_address)?;
        Ok(ReservedNode { name: word(&node.name)?, control, access: Access::Notebook })
    };
    distinct(nodes.into_iter().map(node).collect::<Result<_, ManifestError>>()?)
}

#[derive(Deserialize)]
struct Container {
    lab_name: String,
    name: String,
    ipv4_address: String,
}

/// Reads the nodes in the JSON of `containerlab inspect`: an object with an array of containers for each lab, or in earlier
/// versions with one array `containers`.
///
/// # Errors
/// It is not such JSON, or a container has no address.
pub fn containerlab(text: &str) -> Result<Vec<ReservedNode>, ManifestError> {
    let labs: BTreeMap<String, Vec<Container>> = serde_json::from_str(text).map_err(|error| {
        ManifestError::Json(error, "`containerlab inspect --format json -t FILE`")
    })?;
    let node = |container: Container| {
        // `PREFIX-LAB-NODE`, where the prefix is `clab` or empty.
        let lab = format!("{}-", container.lab_name);
        let name = container.name.strip_prefix("clab-").unwrap_or(&container.name);
        let name = word(name.strip_prefix(&lab).unwrap_or(name))?;
        let text = container.ipv4_address.as_str();
        // A container that does not run has this address.
        if matches!(text, "" | "N/A") {
            return Err(ManifestError::Lacks { node: name, what: "address (`ipv4_address`)" });
        }
        let control = address(&name, text.split_once('/').map_or(text, |(address, _)| address))?;
        let access = Access::Container(word(&container.name)?);
        Ok(ReservedNode { name, control, access })
    };
    distinct(labs.into_values().flatten().map(node).collect::<Result<_, _>>()?)
}

fn address(node: &str, text: &str) -> Result<IpAddr, ManifestError> {
    text.parse().map_err(|source| ManifestError::Address {
        node: node.escape_debug().to_string(),
        text: text.escape_debug().to_string(),
        source,
    })
}

/// Checks that a shell and ssh take a name literally.
fn word(text: &str) -> Result<String, ManifestError> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    if begins && text.len() <= MAX_WORD && text.chars().all(good) {
        Ok(text.to_owned())
    } else {
        Err(ManifestError::Word(
            text.chars().take(MAX_WORD).collect::<String>().escape_debug().to_string(),
        ))
    }
}

/// Rejects two nodes with the same name.
fn distinct(nodes: Vec<ReservedNode>) -> Result<Vec<ReservedNode>, ManifestError> {
    let mut names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].to_owned());
    if let Some(name) = twice {
        return Err(ManifestError::Twice(name));
    }
    if nodes.is_empty() { Err(ManifestError::Empty) } else { Ok(nodes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = r#"<?xml version="1.0"?>
<rspec xmlns="http://www.geni.net/resources/rspec/3" xmlns:e="http://www.protogeni.net/resources/rspec/ext/emulab/1" type="manifest">
  <node client_id="src" exclusive="true">
    <sliver_type name="raw-pc"/>
    <services><login authentication="ssh-keys" hostname="ms0801.utah.cloudlab.us" port="22" username="ada"/></services>
    <interface client_id="src:if1"><ip address="10.77.1.1" netmask="255.255.255.0" type="ipv4"/></interface>
    <host name="src.exp.proj.utah.cloudlab.us" ipv4="128.110.218.40"/>
  </node>
  <link client_id="link1"/>
</rspec>"#;

    fn error<T: std::fmt::Debug>(result: Result<T, ManifestError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn a_manifest_of_cloudlab_has_addresses_and_logins() {
        let (user, host) = ("ada".to_owned(), "ms0801.utah.cloudlab.us".to_owned());
        let expected = ReservedNode {
            name: "src".to_owned(),
            control: "128.110.218.40".parse().unwrap(),
            access: Access::Ssh { user, host, port: 22 },
        };
        assert_eq!(cloudlab(MANIFEST).unwrap(), [expected]);
        let request = MANIFEST.replace("manifest", "request");
        assert!(error(cloudlab(&request)).contains("but a `request`"));
        let waiting = MANIFEST.replace("<host ", "<other ");
        assert!(error(cloudlab(&waiting)).contains("`src` has no address"));
        let address = MANIFEST.replace("128.110.218.40", "128.110.218");
        assert!(error(cloudlab(&address)).contains("the address `128.110.218` of node `src`"));
        for bad in ["-oProxyCommand=x", "a b", "$(x)", ""] {
            let login = MANIFEST.replace("ms0801.utah.cloudlab.us", bad);
            assert!(error(cloudlab(&login)).contains("is not a name"), "{bad}");
        }
        let (before, after) = MANIFEST.split_once("  <link").unwrap();
        let node = &MANIFEST[MANIFEST.find("  <node").unwrap()..before.len()];
        let twice = format!("{before}{node}  <link{after}");
        assert!(error(cloudlab(&twice)).contains("two nodes `src`"));
        assert!(error(cloudlab("{}")).contains("not XML"));
    }

    #[test]
    fn the_notebook_of_fabric_names_control_addresses() {
        let nodes = fabric(r#"[{"name": "src", "control_address": "10.130.1.2"}]"#).unwrap();
        assert_eq!((nodes[0].name.as_str(), nodes.len()), ("src", 1));
        assert_eq!(nodes[0].control.to_string(), "10.130.1.2");
        assert!(error(fabric("[]")).contains("no nodes"));
        assert!(error(fabric("{}")).contains("manifest.json"));
        let none = r#"[{"name": "src", "control_address": "None"}]"#;
        assert!(error(fabric(none)).contains("the address `None` of node `src`"));
    }

    #[test]
    fn containerlab_names_containers_by_lab_and_node() {
        let container = r#"{"lab_name": "q", "name": "clab-q-src", "state": "running",
            "ipv4_address": "172.20.20.2/24", "ipv6_address": "3fff:172:20:20::2/64"}"#;
        for lab in ["q", "containers"] {
            let nodes = containerlab(&format!("{{\"{lab}\": [{container}]}}")).unwrap();
            assert_eq!(nodes[0].name, "src");
            assert_eq!(nodes[0].control.to_string(), "172.20.20.2");
            assert_eq!(nodes[0].access, Access::Container("clab-q-src".to_owned()));
        }
        let with = |address: &str| {
            let container = container.replace("172.20.20.2/24", address);
            containerlab(&format!("{{\"q\": [{container}]}}"))
        };
        for none in ["N/A", ""] {
            assert!(error(with(none)).contains("`src` has no address"), "{none}");
        }
        assert_eq!(with("172.20.20.3").unwrap()[0].control.to_string(), "172.20.20.3");
        assert!(error(with("172.20/24")).contains("the address `172.20` of node `src`"));
    }
}
