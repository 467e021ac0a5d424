package main

import (
	"github.com/ebb-dev/ebb/internal/changefeed"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/etcdcluster"
	"github.com/ebb-dev/ebb/internal/health"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/pod"
	"github.com/ebb-dev/ebb/internal/volume"
)

// kinds are all kinds of work, in the order in which people see them.
var kinds = kind.Kinds{
	deployment.Kind(),
	changefeed.Kind(),
	etcdcluster.Kind(),
	volume.Kind(),
	pod.Kind(),
	health.Kind(),
}
