package apiserver

import (
	"fmt"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/compatibility"
)

// served is the version that the server tells its clients. That of the libraries is a placeholder unless the linker sets it, and `kubectl version`
// fails on it.
type served struct{ compatibility.EffectiveVersion }

// Info implements compatibility.EffectiveVersion.
func (s served) Info() *version.Info {
	info := *s.EffectiveVersion.Info()
	info.GitVersion = fmt.Sprintf("v%s.%s.0+ebb", info.Major, info.Minor)
	info.GitCommit, info.GitTreeState, info.BuildDate = "", "", ""
	return &info
}
