"""Manifests against the parts of the public schemas of Kubernetes that they use, and the names of the device plugin."""

import json
from dataclasses import replace

import jsonschema
import pytest

from foretell.devices import find_device, parse_slice
from foretell.errors import InputError
from foretell.rendering.manifests.kubernetes import kubernetes_files, notes, resource_name
from foretell.rendering.manifests.ray import ray_placement
from foretell.scheduling import Demand, Job, PlaceKind, Profile, Run, build_cluster

H200 = find_device("h200")
SHARED = PlaceKind("h200, mps", H200, None, "mps", 2)
WHOLE = PlaceKind("h200", H200, None, "exclusive", 1)
SLICED = PlaceKind("h200 mig:3g.71gb", H200, parse_slice("mig:3g.71gb", H200), "exclusive", 1)
CLUSTER = build_cluster([(SHARED,), (WHOLE,), (SLICED, SLICED)])

# io.k8s.api.batch.v1.Job and io.k8s.api.core.v1.ConfigMap of the OpenAPI document of Kubernetes, cut to our fields;
# quantities of extended resources are whole numbers, and names are those of RFC 1123
NAME = {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
LABELS = {
    "type": "object",
    "propertyNames": {"pattern": r"^([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"},
    "additionalProperties": {"type": "string", "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"},
}


def strict(required: list[str], **properties: object) -> dict:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


LIMITS = {
    "type": "object",
    "minProperties": 1,
    "propertyNames": {"pattern": r"^nvidia\.com/(gpu|mig-[1-7]g\.[0-9]+gb(\.me)?)(\.shared)?$"},
    "additionalProperties": {"type": "integer", "minimum": 1},
}
CONTAINER = strict(["name", "image"], name=NAME, image={"type": "string", "minLength": 1},
                   resources=strict(["limits"], limits=LIMITS),
                   env={"type": "array", "items": strict(["name", "value"], name={"type": "string"},
                                                         value={"type": "string"})})  # fmt: skip
POD = strict(
    ["containers", "restartPolicy"],
    restartPolicy={"enum": ["Never", "OnFailure"]},
    nodeSelector=LABELS,
    containers={"type": "array", "minItems": 1, "items": CONTAINER},
)
JOB = strict(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "batch/v1"},
    kind={"const": "Job"},
    metadata=strict(["name"], name=NAME, annotations=TEXTS),
    spec=strict(
        ["template"],
        suspend={"type": "boolean"},
        backoffLimit={"type": "integer", "minimum": 0},
        template=strict(["spec"], spec=POD),
    ),
)
JOBS = strict(
    ["apiVersion", "kind", "items"],
    apiVersion={"const": "v1"},
    kind={"const": "List"},
    items={"type": "array", "items": JOB},
)
CONFIG_MAP = strict(
    ["apiVersion", "kind", "metadata", "data"],
    apiVersion={"const": "v1"},
    kind={"const": "ConfigMap"},
    metadata=strict(["name"], name=NAME, namespace=NAME),
    data={**TEXTS, "propertyNames": {"pattern": "^[-._a-zA-Z0-9]+$"}},
)
REPLICAS = strict(["name", "replicas"], name={"type": "string"}, replicas={"type": "integer", "minimum": 2})
SHARING = strict(["resources"], renameByDefault={"type": "boolean"}, resources={"type": "array", "items": REPLICAS})
PLUGIN = strict(
    ["version"],
    version={"const": "v1"},
    flags=strict([], migStrategy={"enum": ["none", "single", "mixed"]}),
    sharing=strict([], mps=SHARING, timeSlicing=SHARING),
)


def run_of(name: str, place: int, start_s: float = 0.0, end_s: float = 5.0, memory_mib: float = 1000.0) -> Run:
    demands = {kind.name: Demand(1.0, memory_mib) for kind in (SHARED, WHOLE, SLICED)}
    return Run(Job(name, Profile(0, name, demands), 0.0, 1.0), place, start_s, end_s, 1.0, True)


RUNS = [run_of("Résumé <job> " + "x" * 90, 0), run_of("b", 0), run_of("c", 1), run_of("d", 2), run_of("d", 2, 5.0, 9.0)]


def test_jobs_follow_the_schema_and_ask_for_what_the_plugin_offers() -> None:
    document = json.loads(kubernetes_files(CLUSTER, RUNS)["jobs.json"])
    jsonschema.validate(document, JOBS)
    limits = [
        next(iter(job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"])) for job in document["items"]
    ]
    assert limits == ["nvidia.com/gpu.shared"] * 2 + ["nvidia.com/gpu"] + ["nvidia.com/mig-3g.71gb"] * 2
    assert [job["spec"]["suspend"] for job in document["items"]] == [False] * 4 + [True]
    assert len({job["metadata"]["name"] for job in document["items"]}) == len(RUNS)
    selectors = {job["spec"]["template"]["spec"]["nodeSelector"]["nvidia.com/gpu.product"] for job in document["items"]}
    assert selectors == {"NVIDIA-H200"}


def test_the_schema_refuses_what_is_wrong() -> None:
    document = json.loads(kubernetes_files(CLUSTER, RUNS)["jobs.json"])
    document["items"][0]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpux": 1}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, JOBS)


def test_the_plugin_is_told_how_to_share() -> None:
    document = json.loads(kubernetes_files(CLUSTER, RUNS)["device-plugin.json"])
    jsonschema.validate(document, CONFIG_MAP)
    plugins = {name: json.loads(text) for name, text in document["data"].items()}
    for plugin in plugins.values():
        jsonschema.validate(plugin, PLUGIN)
    assert plugins["h200-whole-mps-2"]["sharing"]["mps"] == {
        "renameByDefault": True, "resources": [{"name": "nvidia.com/gpu", "replicas": 2}],
    }  # fmt: skip
    assert plugins["h200-mig-exclusive-1"] == {"version": "v1", "flags": {"migStrategy": "mixed"}}
    labels = {job["spec"]["template"]["spec"]["nodeSelector"]["nvidia.com/device-plugin.config"]
              for job in json.loads(kubernetes_files(CLUSTER, RUNS)["jobs.json"])["items"]}  # fmt: skip
    assert labels == set(plugins)


def test_time_slices_of_mig_are_shared_and_mps_on_mig_is_refused() -> None:
    part = parse_slice("mig:1g.18gb", H200)
    sliced = PlaceKind("h200 mig:1g.18gb, time-slicing", H200, part, "time-slicing", 2)
    assert resource_name(sliced) == "nvidia.com/mig-1g.18gb.shared"
    with pytest.raises(InputError, match="no MPS on MIG"):
        kubernetes_files(build_cluster([(PlaceKind("x", H200, part, "mps", 2),)]), [])


def test_what_a_replica_lacks_is_noted() -> None:
    (note,) = notes(CLUSTER, [run_of("big", 0, memory_mib=100_000), run_of("big", 1, memory_mib=100_000), RUNS[1]])
    assert "big needs 100,000 MiB" in note


def test_ray_bundles_never_add_up_to_more_than_the_gpu() -> None:
    runs = [run_of("a", 0), run_of("b", 0), run_of("c", 0, 1.0), run_of("d", 1, 1.0), run_of("e", 0, 5.0, 6.0)]
    document = json.loads(ray_placement(CLUSTER, runs))
    for group in document["placement_groups"]:
        assert sum(bundle["GPU"] for bundle in group["bundles"]) <= 1
    assert [len(group["bundles"]) for group in document["placement_groups"]] == [3, 1]
    jobs = document["jobs"]
    assert [(job["placement_group"], job["bundle_index"]) for job in jobs] == [(0, 0), (0, 1), (0, 2), (1, 0), (0, 0)]
    for job in jobs:
        bundle = document["placement_groups"][job["placement_group"]]["bundles"][job["bundle_index"]]
        assert job["num_gpus"] == bundle["GPU"]


def test_a_job_of_several_gpus_asks_for_them_where_they_are_whole() -> None:
    two = build_cluster([(WHOLE,), (WHOLE,), (SHARED,), (SHARED,)])
    document = json.loads(kubernetes_files(two, [replace(run_of("wide", 0), others=(1,))])["jobs.json"])
    jsonschema.validate(document, JOBS)
    (job,) = document["items"]
    assert job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert job["metadata"]["annotations"]["foretell/gpu"] == "0,1"
    with pytest.raises(InputError, match=r"gives parts of GPUs .*h200, mps.* 'wide', which needs 2 whole ones"):
        kubernetes_files(two, [replace(run_of("wide", 2), others=(3,))])
    with pytest.raises(InputError, match=r"'wide' needs 2: leave out --ray"):
        ray_placement(two, [replace(run_of("wide", 0), others=(1,))])


def test_a_percentage_is_set_where_there_is_mps() -> None:
    limited = [replace(one, job=replace(one.job, profile=replace(one.job.profile, percentage=30.0))) for one in RUNS]
    document = json.loads(kubernetes_files(CLUSTER, limited)["jobs.json"])
    jsonschema.validate(document, JOBS)
    variables = [job["spec"]["template"]["spec"]["containers"][0].get("env") for job in document["items"]]
    assert variables == [[{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "30"}]] * 2 + [None] * 3
