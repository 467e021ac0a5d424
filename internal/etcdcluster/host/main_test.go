package host_test

import (
	"os"
	"testing"

	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// all stands for all tests of the package.
var all testenv.EveryTest

func TestMain(m *testing.M) {
	testenv.ServeAsChild(member.Command, member.Main)
	os.Exit(all.Run(m))
}
