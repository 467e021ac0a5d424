package apiserver

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/util/notfoundhandler"

	"github.com/ebb-dev/ebb/internal/apiserver/core"
)

// discovery serves /apis, which clients read first. In a full Kubernetes the aggregator does that; here there is none before the server
// of custom resources. /apis is answered from that server's own list of groups. The core group serves its own root.
type discovery struct {
	groups aggregated.ResourceManager
	// crds is set once the server exists; discovery is not served before.
	crds listers.CustomResourceDefinitionLister
}

func (d *discovery) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/apis", aggregated.WrapAggregatedDiscoveryToHandler(http.HandlerFunc(d.serveGroups), d.groups, d.groups))
	// A path that is unknown only because the server is still starting is answered with 503, never with a 404 that a
	// client would take for an object that does not exist.
	mux.Handle("/", notfoundhandler.New(apiextensions.Codecs, genericapifilters.NoMuxAndDiscoveryIncompleteKey))
	return mux
}

// serveGroups answers clients that do not ask for the aggregated form.
func (d *discovery) serveGroups(w http.ResponseWriter, _ *http.Request) {
	crds, err := d.crds.List(labels.Everything())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeJSON(w, http.StatusOK, groupList(crds))
}

func groupList(crds []*apiextensionsv1.CustomResourceDefinition) metav1.APIGroupList {
	served := map[string]sets.Set[string]{apiextensionsv1.GroupName: sets.New("v1")}
	for _, group := range core.Groups {
		served[group] = sets.New("v1")
	}
	for _, crd := range crds {
		for _, v := range crd.Spec.Versions {
			if !v.Served {
				continue
			}
			if served[crd.Spec.Group] == nil {
				served[crd.Spec.Group] = sets.New[string]()
			}
			served[crd.Spec.Group].Insert(v.Name)
		}
	}
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, group := range slices.Sorted(maps.Keys(served)) {
		list.Groups = append(list.Groups, apiGroup(group, served[group].UnsortedList()))
	}
	return list
}

// apiGroup lists a group's versions, the most stable first: that is the one to prefer.
func apiGroup(name string, versions []string) metav1.APIGroup {
	slices.SortFunc(versions, func(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) })
	group := metav1.APIGroup{Name: name}
	for _, v := range versions {
		group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: name + "/" + v, Version: v})
	}
	group.PreferredVersion = group.Versions[0]
	return group
}

func writeJSON(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// The status line is sent already; the client may have disconnected.
	_ = json.NewEncoder(w).Encode(object)
}
