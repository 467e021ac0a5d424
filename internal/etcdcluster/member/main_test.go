package member_test

import (
	"os"
	"testing"

	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.ServeAsChild(member.Command, member.Main)
	os.Exit(m.Run())
}
