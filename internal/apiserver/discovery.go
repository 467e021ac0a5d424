package apiserver

import (
	"encoding/json"
	"net/http"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
)

// discovery answers the two roots that clients ask first. In a full Kubernetes the aggregator does that; here nothing
// stands before the server of custom resources, which passes on what it does not know: /apis is answered from the
// server's own record of groups, /api with an empty list because there are no core types.
type discovery struct {
	groups aggregated.ResourceManager
	// crds is set once the server exists; discovery is not served before.
	crds listers.CustomResourceDefinitionLister
}

func (d *discovery) handler() http.Handler {
	core := aggregated.NewResourceManager("api")
	mux := http.NewServeMux()
	mux.Handle("/api", aggregated.WrapAggregatedDiscoveryToHandler(http.HandlerFunc(serveNoVersions), core, core))
	mux.Handle("/apis", aggregated.WrapAggregatedDiscoveryToHandler(http.HandlerFunc(d.serveGroups), d.groups, d.groups))
	return mux
}

func serveNoVersions(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions", APIVersion: "v1"}, Versions: []string{}})
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
	versions := map[string]string{apiextensionsv1.GroupName: "v1"}
	order := []string{apiextensionsv1.GroupName}
	for _, crd := range crds {
		if _, known := versions[crd.Spec.Group]; !known {
			order = append(order, crd.Spec.Group)
		}
		for _, v := range crd.Spec.Versions {
			if v.Served {
				versions[crd.Spec.Group] = v.Name
			}
		}
	}
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, group := range order {
		gv := metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + versions[group], Version: versions[group]}
		list.Groups = append(list.Groups, metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{gv}, PreferredVersion: gv})
	}
	return list
}

func writeJSON(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// The status line is out; a client that went away is nobody's concern.
	_ = json.NewEncoder(w).Encode(object)
}
